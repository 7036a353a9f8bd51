"""A stand-in for the module `flashinfer` on the shadow device.

It checks arguments as `BatchPrefillWithPagedKVCacheWrapper` of flashinfer-python 0.6.13 requires
them (flashinfer/prefill.py), moves them between host and device as that does, so that the shadow
device counts its waits and watches its pinned memory, and computes by the torch reference what the
kernels of backend fa2 compute: from the buffers on the device, not from the host's numbers.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from specdecode_kernels import AttentionMetadata, AttentionParams, KvScale, LayerKV
from specdecode_kernels.torch.attention import attend
from tests.shadow_cuda.device import ShadowDevice
from tests.shadow_cuda.plain_torch import plain_torch
from tests.shadow_cuda.tensor import ShadowTensor

VERSION = "0.6.13"
"""The version whose signatures these are; engine/pyproject.toml pins it."""

HALVES = (torch.float16, torch.bfloat16)
_FIRST_WORKSPACE_BYTES = 1 << 10
"""FlashInfer's is 8 MiB; the stand-in saves the time to poison them."""


class FlashInferMisused(RuntimeError):
    """FlashInfer would have refused these arguments, or computed something else."""


@contextmanager
def installed_flashinfer(device: ShadowDevice) -> Iterator[ModuleType]:
    """Let `import flashinfer` find the stand-in, for one shadow device."""
    module = ModuleType("flashinfer")
    module.__spec__ = ModuleSpec("flashinfer", None)
    module.__version__ = VERSION  # type: ignore[attr-defined]
    bound = {"shadow": device}
    name = BatchPrefillWithPagedKVCacheWrapper.__name__
    setattr(module, name, type(name, (BatchPrefillWithPagedKVCacheWrapper,), bound))
    with mock.patch.dict(sys.modules, flashinfer=module):
        yield module


class BatchPrefillWithPagedKVCacheWrapper:
    """Paged attention of several requests, planned on the host; `plans` and `runs` count calls.

    Private attributes that our backend sets have FlashInfer's names.
    """

    shadow: ShadowDevice
    plans = 0
    runs = 0

    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: Tensor | None = None,
        paged_kv_indptr_buf: Tensor | None = None,
        paged_kv_indices_buf: Tensor | None = None,
        paged_kv_last_page_len_buf: Tensor | None = None,
        custom_mask_buf: Tensor | None = None,
        mask_indptr_buf: Tensor | None = None,
        backend: str = "auto",
        jit_args: list[Any] | None = None,
        jit_kwargs: dict[str, Any] | None = None,
    ) -> None:
        self._check(kv_layout == "NHD", "the stand-in knows layout NHD only")
        self._check(not use_cuda_graph, "the stand-in knows no CUDA graphs")
        self._check(backend == "fa2", "only fa2 reads lengths on the device")
        self._check_zeros(float_workspace_buffer)
        self.device = float_workspace_buffer.device
        int_workspace = torch.empty(_FIRST_WORKSPACE_BYTES, dtype=torch.uint8, device=self.device)
        self.reset_workspace_buffer(float_workspace_buffer, int_workspace)
        self._planned: dict[str, Any] | None = None

    def reset_workspace_buffer(
        self, float_workspace_buffer: Tensor, int_workspace_buffer: Tensor
    ) -> None:
        for buffer in (float_workspace_buffer, int_workspace_buffer):
            is_bytes = isinstance(buffer, ShadowTensor) and buffer.dtype == torch.uint8
            self._check(is_bytes, "a workspace must be uint8 on the device")
        self._float_workspace_buffer = float_workspace_buffer
        self._int_workspace_buffer = int_workspace_buffer
        self._pin_memory_int_workspace_buffer = torch.empty(
            int_workspace_buffer.shape, dtype=torch.uint8, pin_memory=True
        )

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        head_dim_vo: int | None = None,
        custom_mask: Tensor | None = None,
        packed_custom_mask: Tensor | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        q_data_type: str | torch.dtype = "float16",
        kv_data_type: str | torch.dtype | None = None,
        o_data_type: str | torch.dtype | None = None,
        non_blocking: bool = True,
        prefix_len_ptr: Tensor | None = None,
        token_pos_in_items_ptr: Tensor | None = None,
        token_pos_in_items_len: int = 0,
        max_item_len_ptr: Tensor | None = None,
        seq_lens: Tensor | None = None,
        seq_lens_q: Tensor | None = None,
        block_tables: Tensor | None = None,
        max_token_per_sequence: int | None = None,
        max_sequence_kv: int | None = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
    ) -> None:
        self.shadow.refuse_in_capture("plan of flashinfer")
        batch = len(qo_indptr) - 1
        numbers = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        self._check(all(one.dtype == torch.int32 for one in numbers), "indices must be int32")
        self._check(len(paged_kv_indptr) == batch + 1, "paged_kv_indptr must be [batch + 1]")
        self._check(len(paged_kv_last_page_len) == batch, "last_page_len must be [batch]")
        self._check(num_qo_heads % num_kv_heads == 0, "query heads must be shared evenly")
        self._check(q_data_type in HALVES, "queries must be float16 or bfloat16")
        self._check(max_sequence_kv is None, "with max_sequence_kv the plan has no lengths")
        # What lies on the device is read, which waits.
        starts, page_starts = qo_indptr.to("cpu"), paged_kv_indptr.to("cpu")
        last = paged_kv_last_page_len.to("cpu")
        lens = (page_starts[1:] - page_starts[:-1] - 1) * page_size + last
        if seq_lens is not None:
            given = seq_lens.cpu()
            self._check(torch.equal(given, lens), "seq_lens contradict the pages")
            lens = given
        lens.to(self.device, non_blocking=non_blocking)
        self._qo_indptr_buf = qo_indptr.to(self.device, non_blocking=non_blocking)
        self._paged_kv_indptr_buf = paged_kv_indptr.to(self.device, non_blocking=non_blocking)
        self._paged_kv_indices_buf = paged_kv_indices.to(self.device, non_blocking=non_blocking)
        self._paged_kv_last_page_len_buf = paged_kv_last_page_len.to(
            self.device, non_blocking=non_blocking
        )
        schedule = self._pin_memory_int_workspace_buffer.view(torch.int32)[:batch]
        schedule.copy_(lens)
        self._int_workspace_buffer.view(torch.int32)[:batch].copy_(schedule, non_blocking=True)
        self._planned = {
            "rows": (starts[1:] - starts[:-1]).tolist(),
            "heads": (num_qo_heads, num_kv_heads, head_dim_qk),
            "page_size": page_size,
            "causal": causal,
            "types": (q_data_type, kv_data_type or q_data_type),
            "may_split": not disable_split_kv,
            "params": AttentionParams(
                scale=sm_scale,
                logit_softcap=logits_soft_cap,
                sliding_window=None if window_left < 0 else window_left + 1,
            ),
        }
        type(self).plans += 1

    def run(
        self,
        q: Tensor,
        paged_kv_cache: Tensor | tuple[Tensor, Tensor],
        *args: Any,
        q_scale: float | Tensor | None = None,
        k_scale: float | Tensor | None = None,
        v_scale: float | Tensor | None = None,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        return_lse: bool = False,
        enable_pdl: bool | None = None,
        window_left: int | None = None,
        sinks: Tensor | None = None,
        kv_cache_sf: Tensor | tuple[Tensor, Tensor] | None = None,
        skip_softmax_threshold_scale_factor: float | None = None,
    ) -> Tensor:
        planned = self._planned
        assert planned is not None, "plan info is not initialized"
        k, v = paged_kv_cache
        q_heads, kv_heads, dim = planned["heads"]
        self._check((q.dtype, k.dtype) == planned["types"], "other types than planned")
        self._check(q.shape == (sum(planned["rows"]), q_heads, dim), f"q is {list(q.shape)}")
        self._check(k.shape[1:] == (planned["page_size"], kv_heads, dim), f"k {list(k.shape)}")
        self._check(q.stride(2) == 1 and k.stride() == v.stride(), "strides")
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
        self._check(out.shape == q.shape and out.dtype == q.dtype, f"out is {list(out.shape)}")
        self._check(out.is_contiguous(), "the kernel writes whole rows")
        tensors = (q, k, v, out, *self._buffers())
        on_device = [one for one in tensors if isinstance(one, ShadowTensor)]
        self._check(len(on_device) == len(tensors), "all tensors must be on the device")
        assert k_scale is None or isinstance(k_scale, float)
        assert v_scale is None or isinstance(v_scale, float)
        scale = KvScale(k_scale or 1.0, v_scale or 1.0)
        self._launch([one.content for one in on_device], scale, planned)
        type(self).runs += 1
        return out

    def _buffers(self) -> tuple[Tensor, ...]:
        """The tensors whose addresses the kernel gets."""
        return (
            self._qo_indptr_buf,
            self._paged_kv_indptr_buf,
            self._paged_kv_indices_buf,
            self._paged_kv_last_page_len_buf,
            self._int_workspace_buffer,
        )

    def _launch(self, contents: list[Tensor], scale: KvScale, planned: dict[str, Any]) -> None:
        def kernel() -> tuple[Tensor, ...]:
            with plain_torch(), torch.inference_mode():
                self._compute(contents, scale, planned)
            return ()

        self.shadow.launch()
        if self.shadow.capture is not None:
            self.shadow.capture.before_write(contents[3])
            self.shadow.capture.add(kernel, ())
        kernel()

    def _compute(self, contents: list[Tensor], scale: KvScale, planned: dict[str, Any]) -> None:
        q, k, v, out, starts, page_starts, indices, last, schedule = contents
        rows, size = planned["rows"], planned["page_size"]
        self._check((starts[1:] - starts[:-1]).tolist() == rows, "other query rows than planned")
        counts = page_starts[1:] - page_starts[:-1]
        lens = (counts - 1) * size + last
        bounds = schedule.view(torch.int32)[: len(rows)]
        self._check_lengths(lens, bounds, rows, may_split=planned["may_split"])
        table = torch.zeros(len(rows), int(counts.max()), dtype=torch.int64)
        for row, (first, count) in enumerate(zip(page_starts.tolist(), counts, strict=False)):
            table[row, :count] = indices[first : first + count]
        before = [range(count - 1, -1, -1) if planned["causal"] else [0] * count for count in rows]
        kv_lens = [
            max(0, int(length) - step)
            for length, steps in zip(lens, before, strict=True)
            for step in steps
        ]
        most = table.shape[1] * size
        metadata = AttentionMetadata(table, size, tuple(rows), torch.tensor(kv_lens), most)
        cache = LayerKV(k.flatten(0, 1), v.flatten(0, 1), scale)
        out.copy_(attend(q.contiguous(), cache, metadata, None, planned["params"]))

    def _check_lengths(
        self, lens: Tensor, bounds: Tensor, rows: list[int], *, may_split: bool
    ) -> None:
        """Check the true lengths against those that the plan divided into chunks."""
        for length, bound, count in zip(lens.tolist(), bounds.tolist(), rows, strict=True):
            self._check(0 <= length <= bound, f"{length} rows are seen, {bound} were planned")
            is_placed = count == 1 or length == bound or not may_split
            self._check(is_placed, f"parts of {count} rows would be merged from other places")

    def _check_zeros(self, workspace: Tensor) -> None:
        sampled = isinstance(workspace, ShadowTensor) and workspace.content[::4096]
        is_zero = isinstance(sampled, Tensor) and not sampled.any()
        self._check(is_zero, "the workspace must be zero for its first use")

    def _check(self, is_right: bool, what: str) -> None:
        if not is_right:
            self.shadow.fail(FlashInferMisused(what))
