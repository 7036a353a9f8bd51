"""Attention by FlashInfer where its plan needs no wait for the device, else by another backend.

FlashInfer plans on the host: it divides each request's keys into chunks, by lengths that it must
know there. With overlap the host knows upper bounds only. The plan takes these; the kernels of
FlashInfer's backend fa2 compute each length from `indptr` and `last_page_len` on the device and
leave chunks after it empty. That holds for requests of one query row. For several rows the kernels
place the parts of a split request by its true number of chunks, and the merge reads them by the
planned number: such requests are served where their bounds are exact or nothing is split.

Scale, softcap and sliding window are arguments of the plan. The kernel finds the first row of a
window from the length on the device; plan and kernel count chunks of a window and a tile at most,
which bounds what is left of any true length. The wrapper's kernels have no sinks and no
chunks, and take keys and values of one head size: others go to the other backend.

Written against flashinfer-python 0.6.13: `BatchPrefillWithPagedKVCacheWrapper` in prefill.py,
`PrefillPlan` in attention/scheduler.cuh, `BatchPrefillWithPagedKVCacheDevice` in
attention/prefill.cuh. On an H100 its numbers equal the reference's.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from specdecode_kernels.backend import Backend
from specdecode_kernels.metadata import (
    DEFAULT_ATTENTION,
    UNSCALED,
    AttentionMetadata,
    AttentionParams,
    CausalBounds,
    LayerKV,
    TreeKV,
)

MAX_GROUP = 8
"""Query heads per KV head that the workspace of splits suffices for."""
PLANS = 16
"""Plans whose copies to the device may be under way: a step makes at most three for layers with a
window and three for others, and of the steps in flight the host launches the third only after it
has collected the first."""
INT_WORKSPACE_BYTES = 2 << 20
"""Of a plan: 12 bytes per tile and 4 per query row."""
PROGRAMS_PER_PROCESSOR = 2
"""As in PrefillPlan, which splits requests into at most that many programs."""


@dataclass(frozen=True, slots=True)
class Heads:
    """What FlashInfer compiles and plans for, besides the metadata."""

    q_heads: int
    kv_heads: int
    dim: int
    dtype: torch.dtype
    kv_dtype: torch.dtype
    scale: float
    softcap: float | None
    window: int | None


def with_flashinfer(
    backend: Backend,
    device: torch.device,
    dtype: torch.dtype,
    dim: int,
    kv_dtype: torch.dtype,
    layers: Collection[AttentionParams] = (DEFAULT_ATTENTION,),
) -> Backend:
    """Attend by FlashInfer as far as it serves, else by `backend`.

    FlashInfer compiles kernels for windows and softcaps of their own: a call on the device is made
    for each kind of layer.

    Args:
        layers: parameters of their attention.

    Raises:
        Exception: FlashInfer cannot be imported, or cannot compile, plan or run for these types.
    """
    attention = FlashInferAttention(backend, device, dim)
    for params in _one_of_each_kind(layers):
        _call_once(attention, device, dtype, dim, kv_dtype, params)
    return replace(backend, attention="flashinfer", attend=attention.attend)


class FlashInferAttention:
    """Run FlashInfer's paged wrapper, planned once for all layers of a forward.

    A plan copies from pinned memory without a wait. Its memory is used again when the copy is
    known to be complete, hence several plans in turn.
    """

    def __init__(self, fallback: Backend, device: torch.device, dim: int) -> None:
        import flashinfer  # not on every machine

        self._attend_otherwise = fallback.attend
        self._dim = dim  # that the workspace is for
        self._max_programs = PROGRAMS_PER_PROCESSOR * _processors(device)
        # FlashInfer requires zeros at the first use.
        num_bytes = _workspace_bytes(self._max_programs, dim)
        workspace = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        self._plans = [_Plan(flashinfer, workspace, device) for _ in range(PLANS)]
        self._turn = 0

    def attend(
        self,
        q: Tensor,
        kv: LayerKV,
        metadata: AttentionMetadata,
        tree_kv: TreeKV | None,
        params: AttentionParams = DEFAULT_ATTENTION,
    ) -> Tensor:
        bounds = metadata.causal_bounds
        if bounds is None or tree_kv is not None or not self._serves(bounds, q, kv, params):
            return self._attend_otherwise(q, kv, metadata, tree_kv, params)
        heads = _heads(q, kv, params)
        pages = tuple(x.view(-1, metadata.page_size, *x.shape[1:]) for x in (kv.k, kv.v))
        scales = {} if kv.scale == UNSCALED else {"k_scale": kv.scale.k, "v_scale": kv.scale.v}
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        self._plan_for(metadata, bounds, heads).wrapper.run(q, pages, out=out, **scales)
        return out

    def _serves(
        self, bounds: CausalBounds, q: Tensor, kv: LayerKV, params: AttentionParams
    ) -> bool:
        kv_heads = kv.k.shape[1]
        if params.sinks is not None or params.attention_chunk_size is not None:
            return False
        if not kv.k.shape[2] == kv.v.shape[2] == self._dim:
            return False
        if q.shape[1] > MAX_GROUP * kv_heads or not bounds.kv_lens:
            return False
        fills_device = len(bounds.kv_lens) * kv_heads >= self._max_programs
        return bounds.inexact_rows <= 1 or fills_device

    def _plan_for(self, metadata: AttentionMetadata, bounds: CausalBounds, heads: Heads) -> "_Plan":
        latest = self._plans[self._turn]
        if latest.is_for(metadata, heads):
            return latest
        for plan in self._plans:
            if plan.is_for(metadata, heads):
                return plan
        self._turn = (self._turn + 1) % PLANS
        plan = self._plans[self._turn]
        plan.make(metadata, bounds, heads)
        return plan


class _Plan:
    """A wrapper with pinned memory of its own, and what it was last planned for."""

    def __init__(self, flashinfer: Any, workspace: Tensor, device: torch.device) -> None:
        self._device = device
        # The other backend of this wrapper, fa3, keeps the lengths that the host planned with.
        self.wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
            workspace, "NHD", backend="fa2"
        )
        own = torch.empty(INT_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self.wrapper.reset_workspace_buffer(workspace, own)
        self._host = torch.empty(0, dtype=torch.int32)
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._made_for: tuple[AttentionMetadata, Heads] | None = None

    def is_for(self, metadata: AttentionMetadata, heads: Heads) -> bool:
        made_for = self._made_for
        return made_for is not None and made_for[0] is metadata and made_for[1] == heads

    def make(self, metadata: AttentionMetadata, bounds: CausalBounds, heads: Heads) -> None:
        """Plan on the host by bounds, then let the kernels read lengths on the device.

        Raises:
            RuntimeError: a CUDA graph is being captured.
        """
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("flashinfer cannot plan while a CUDA graph is captured")
        if not self._copied.query():  # type: ignore[no-untyped-call]
            self._copied.synchronize()
        size, batch = metadata.page_size, len(bounds.kv_lens)
        pages = [max(1, -(-bound // size)) for bound in bounds.kv_lens]
        last = [
            bound - (held - 1) * size for bound, held in zip(bounds.kv_lens, pages, strict=True)
        ]
        starts, page_starts = accumulate(metadata.qo_lens, initial=0), accumulate(pages, initial=0)
        numbers = self._stage(batch + 1, starts, page_starts, (*last, 0), (*bounds.kv_lens, 0))
        self.wrapper.plan(
            numbers[0],
            numbers[1],
            metadata.page_table.to(torch.int32).reshape(-1),
            numbers[2, :batch],
            heads.q_heads,
            heads.kv_heads,
            heads.dim,
            size,
            causal=True,
            q_data_type=heads.dtype,
            kv_data_type=heads.kv_dtype,
            sm_scale=heads.scale,
            logits_soft_cap=heads.softcap,
            window_left=-1 if heads.window is None else heads.window - 1,
            seq_lens=numbers[3, :batch],
            max_token_per_sequence=max(metadata.qo_lens),
            disable_split_kv=bounds.inexact_rows > 1,
        )
        self._read_lengths_on_device(metadata)
        self._copied.record()
        self._made_for = (metadata, heads)

    def _stage(self, width: int, *rows: Iterable[int]) -> Tensor:
        """Write numbers to pinned memory [rows, width] i32."""
        if self._host.numel() < len(rows) * width:
            self._host = torch.empty(len(rows) * width, dtype=torch.int32, pin_memory=True)
        staged = self._host[: len(rows) * width].view(len(rows), width)
        return staged.copy_(torch.tensor([tuple(row) for row in rows], dtype=torch.int32))

    def _read_lengths_on_device(self, metadata: AttentionMetadata) -> None:
        """Replace the bounds that the plan copied: page tables at their full width, true lengths.

        The kernels compute a length as (pages - 1) * page_size + last_page_len, modulo 2^32; so a
        request may hold more pages than it needs and a last page of fewer than no rows.
        """
        batch, width = metadata.page_table.shape
        rows = metadata.uniform_qo_len
        if rows is not None:
            seen = metadata.kv_lens[rows - 1 :: rows]
        else:
            seen = metadata.kv_lens.index_select(0, self.wrapper._qo_indptr_buf[1:] - 1)
        self.wrapper._paged_kv_indptr_buf = torch.arange(
            0, (batch + 1) * width, width, dtype=torch.int32, device=self._device
        )
        rest = (width - 1) * metadata.page_size
        self.wrapper._paged_kv_last_page_len_buf = (seen - rest).to(torch.int32)


def _heads(q: Tensor, kv: LayerKV, params: AttentionParams) -> Heads:
    return Heads(
        q.shape[1],
        kv.k.shape[1],
        q.shape[2],
        q.dtype,
        kv.k.dtype,
        params.scale_of(q.shape[2]),
        params.logit_softcap,
        params.sliding_window,
    )


def _one_of_each_kind(layers: Iterable[AttentionParams]) -> Iterable[AttentionParams]:
    """Return parameters of one layer for each module that FlashInfer compiles."""
    own = [one for one in layers if one.attention_chunk_size is None]
    kinds = {(one.sliding_window is None, one.logit_softcap is None): one for one in own}
    return kinds.values()


def _call_once(
    attention: FlashInferAttention,
    device: torch.device,
    dtype: torch.dtype,
    dim: int,
    kv_dtype: torch.dtype,
    params: AttentionParams,
) -> None:
    """Attend to one row, which compiles the kernels where they are not, and wait for it."""
    ones = torch.ones(1, 1, dtype=torch.int64, device=device)
    bounds = CausalBounds((1,))
    metadata = AttentionMetadata(ones - 1, 1, (1,), ones[0], 1, causal_bounds=bounds)
    row = torch.zeros(1, 1, dim, dtype=dtype, device=device)
    cache = row.to(kv_dtype)
    attention.attend(row, LayerKV(cache, cache), metadata, None, params)
    torch.cuda.synchronize(device)


def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def _workspace_bytes(max_programs: int, dim: int) -> int:
    """Bytes of the parts of split requests: a tile of f32 rows and their sums per program.

    PrefillPlan takes q_heads * (max_programs // kv_heads) * tile * (dim + 1) floats.
    """
    tile = 128 if dim < 256 else 64
    return MAX_GROUP * max_programs * tile * (dim + 1) * 4 + 256
