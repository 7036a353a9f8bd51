"""FlashInfer's kernels for the pages, ours for the tail and the store, merged by log-sum-exp.

Written against the source of flashinfer-python 0.6.13; not run on a GPU yet. FlashInfer plans on
the host, from lengths that it has to know there: every new layout waits once for the device.
"""

from dataclasses import dataclass, replace
from itertools import accumulate
from math import log
from typing import Any

import flashinfer
import torch
from torch import Tensor

from specdecode_kernels.backends.backend import Capturing
from specdecode_kernels.backends.spans import Spans, find_spans
from specdecode_kernels.backends.triton_backend import TritonBackend
from specdecode_kernels.launches import count
from specdecode_kernels.layout import AttentionLayout, KvScale, Tail

WORKSPACE_BYTES = 128 << 20
LN_2 = log(2.0)


@dataclass(frozen=True, slots=True)
class Heads:
    """What FlashInfer compiles and plans for, besides the layout."""

    q_heads: int
    kv_heads: int
    dim: int
    dtype: torch.dtype
    pool_dtype: torch.dtype


class FlashInferBackend:
    """Run FlashInfer's paged wrappers, planned once for every layout and kind of heads.

    In a CUDA graph nothing can be planned. With `in_graphs`, `plan` is called before a capture and
    again before each replay, with a layout of the same sizes: it refills the buffers that belong to
    those sizes, which the captured launches read.
    """

    name = "flashinfer"

    def __init__(self, device: torch.device, *, in_graphs: bool = False) -> None:
        """Allocate the workspace that all wrappers share."""
        self._device = device
        self._in_graphs = in_graphs
        self._own = TritonBackend(device)
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._wrappers: dict[tuple[object, ...], Any] = {}
        self._planned: tuple[AttentionLayout, Heads, Any] | None = None

    @property
    def capturing(self) -> Capturing:
        """Only where whoever replays plans before it, which `in_graphs` promises."""
        if self._in_graphs:
            return Capturing(True)
        return Capturing(False, "flashinfer plans on the host before every launch")

    def plan(self, layout: AttentionLayout, heads: Heads) -> Any:
        """Copy the lengths to the host and plan the wrapper that runs it; waits for the device.

        Raises:
            RuntimeError: a CUDA graph is being captured.
        """
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("flashinfer cannot plan within a CUDA graph: call plan before it")
        spans = find_spans(layout.query_lens, tuple(layout.visible.tolist()))
        pages = [-(-length // layout.page_size) for length in spans.lengths]
        page_starts = _int32((0, *accumulate(pages)))
        # The last page of a span that sees nothing holds 0 rows, as FlashInfer counts.
        last = _int32(
            length - max(0, held - 1) * layout.page_size
            for length, held in zip(spans.lengths, pages, strict=True)
        )
        indices = _pages_of(layout, spans, pages)
        wrapper = self._wrapper(spans, layout, heads)
        types = {"q_data_type": heads.dtype, "kv_data_type": heads.pool_dtype}
        sizes = (heads.q_heads, heads.kv_heads, heads.dim, layout.page_size)
        if max(spans.query_lens) == 1:
            wrapper.plan(page_starts, indices, last, *sizes, **types)
        else:
            query_starts = _int32((0, *accumulate(spans.query_lens)))
            causal = spans.is_causal
            wrapper.plan(query_starts, page_starts, indices, last, *sizes, causal=causal, **types)
        self._planned = (layout, heads, wrapper)
        return wrapper

    def store_kv(
        self, k_pool: Tensor, v_pool: Tensor, rows: Tensor, k: Tensor, v: Tensor, scale: KvScale
    ) -> None:
        """Write new rows into the pools with our kernel."""
        self._own.store_kv(k_pool, v_pool, rows, k, v, scale)

    def attend(
        self,
        q: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        layout: AttentionLayout,
        tail: Tail | None,
        scale: KvScale,
    ) -> Tensor:
        """Attend to the pages, then to the tail, and merge."""
        return self.attend_with_lse(q, k_pool, v_pool, layout, tail, scale)[0]

    def attend_with_lse(
        self,
        q: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        layout: AttentionLayout,
        tail: Tail | None,
        scale: KvScale,
    ) -> tuple[Tensor, Tensor]:
        """Attend to the pages, then to the tail, and merge; FlashInfer's lse is of base 2."""
        if not q.shape[0]:
            return q.clone(), q.new_empty(q.shape[:2], dtype=torch.float32)
        heads = Heads(q.shape[1], k_pool.shape[1], q.shape[2], q.dtype, k_pool.dtype)
        paged = tuple(x.view(-1, layout.page_size, *x.shape[1:]) for x in (k_pool, v_pool))
        count("attend", self.name)
        scales = {} if scale == KvScale() else {"k_scale": scale.k, "v_scale": scale.v}
        out, lse = self._wrapper_for(layout, heads).run(
            q.contiguous(), paged, return_lse=True, **scales
        )
        # FlashInfer's infinity is finite.
        lse = (lse * LN_2).masked_fill(layout.visible[:, None] == 0, -torch.inf)
        if tail is None:
            return out, lse
        nothing = replace(layout, visible=torch.zeros_like(layout.visible), max_visible=0)
        tail_state = self._own.attend_with_lse(q, k_pool, v_pool, nothing, tail, KvScale())
        return self._own.merge_states(out, lse, *tail_state)

    def merge_states(
        self, out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Merge with our kernel: FlashInfer's gives NaN where both states see nothing."""
        return self._own.merge_states(out_a, lse_a, out_b, lse_b)

    def _wrapper_for(self, layout: AttentionLayout, heads: Heads) -> Any:
        planned = self._planned
        is_capturing = torch.cuda.is_current_stream_capturing()
        if (
            planned is None
            or planned[1] != heads
            or (planned[0] is not layout and not is_capturing)
        ):
            return self.plan(layout, heads)
        return planned[2]

    def _wrapper(self, spans: Spans, layout: AttentionLayout, heads: Heads) -> Any:
        # In graphs one for each size, as it owns the buffers that launches of that size read.
        batch, width = len(spans.owners), layout.page_table.shape[1]
        is_decode = max(spans.query_lens) == 1
        key = (is_decode, batch, width, heads) if self._in_graphs else (is_decode,)
        if key not in self._wrappers:
            make = self._decode_wrapper if is_decode else self._prefill_wrapper
            self._wrappers[key] = make(batch, width)
        return self._wrappers[key]

    def _decode_wrapper(self, batch: int, width: int) -> Any:
        buffers = {}
        if self._in_graphs:
            buffers = {
                "paged_kv_indptr_buffer": self._int32_buffer(batch + 1),
                "paged_kv_indices_buffer": self._int32_buffer(batch * width),
                "paged_kv_last_page_len_buffer": self._int32_buffer(batch),
            }
        return flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            self._workspace, "NHD", self._in_graphs, use_tensor_cores=True, **buffers
        )

    def _prefill_wrapper(self, batch: int, width: int) -> Any:
        buffers = {}
        if self._in_graphs:
            buffers = {
                "qo_indptr_buf": self._int32_buffer(batch + 1),
                "paged_kv_indptr_buf": self._int32_buffer(batch + 1),
                "paged_kv_indices_buf": self._int32_buffer(batch * width),
                "paged_kv_last_page_len_buf": self._int32_buffer(batch),
            }
        return flashinfer.BatchPrefillWithPagedKVCacheWrapper(
            self._workspace, "NHD", self._in_graphs, **buffers
        )

    def _int32_buffer(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.int32, device=self._device)


def _int32(numbers: Any) -> Tensor:
    return torch.tensor(tuple(numbers), dtype=torch.int32)


def _pages_of(layout: AttentionLayout, spans: Spans, pages: list[int]) -> Tensor:
    # The page ids of all spans, one behind the other, [sum(pages)] i32 on the device.
    owners = torch.tensor(spans.owners, dtype=torch.int64)
    counts = torch.tensor(pages, dtype=torch.int64)
    rows = owners.repeat_interleave(counts)
    columns = torch.cat([torch.arange(count) for count in pages])
    device = layout.page_table.device
    return layout.page_table[rows.to(device), columns.to(device)].to(torch.int32)
