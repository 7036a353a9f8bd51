"""Attention by FlashInfer over the pages, by Triton over tree KV, merged by log-sum-exp.

Written against the source of flashinfer-python 0.6.13; not run on a GPU yet. FlashInfer plans on
the host, from lengths that it has to know there: all new metadata waits once for the device.
"""

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import log
from typing import Any

import torch
from torch import Tensor

from specdecode_kernels.backend import Backend, GraphSupport
from specdecode_kernels.metadata import UNSCALED, AttentionMetadata, LayerKV, TreeKV
from specdecode_kernels.triton.backend import TritonAttention
from specdecode_kernels.triton.merge_states import merge_states
from specdecode_kernels.triton.store_kv import store_kv

WORKSPACE_BYTES = 128 << 20
LN_2 = log(2.0)


@dataclass(frozen=True, slots=True)
class Spans:
    """Consecutive query rows that attend to one length each.

    FlashInfer knows one length per request, to which either every query row attends, or the last
    row, and each one before it to one row less. Metadata allows more; what does not fit is cut into
    single rows, which always does, at the cost of reading a request's rows once for each.
    """

    owners: tuple[int, ...]  # the request whose pages a span sees
    qo_lens: tuple[int, ...]
    lengths: tuple[int, ...]  # rows of keys and values that its last query row sees
    is_causal: bool


def find_spans(qo_lens: tuple[int, ...], kv_lens: tuple[int, ...]) -> Spans:
    """Lay out query rows by request, causally if all requests allow it, or by single rows."""
    starts = [sum(qo_lens[:number]) for number in range(len(qo_lens))]
    seen = {
        owner: kv_lens[start : start + count]
        for owner, (start, count) in enumerate(zip(starts, qo_lens, strict=True))
        if count
    }
    for step in (1, 0):
        if all(
            after - before == step for rows in seen.values() for before, after in pairwise(rows)
        ):
            lens = tuple(len(rows) for rows in seen.values())
            return Spans(tuple(seen), lens, tuple(rows[-1] for rows in seen.values()), step == 1)
    owners = tuple(owner for owner, rows in seen.items() for _ in rows)
    return Spans(owners, (1,) * len(kv_lens), kv_lens, is_causal=False)


@dataclass(frozen=True, slots=True)
class Heads:
    """What FlashInfer compiles and plans for, besides the metadata."""

    q_heads: int
    kv_heads: int
    dim: int
    dtype: torch.dtype
    kv_dtype: torch.dtype


def with_flashinfer(backend: Backend, device: torch.device, *, in_graphs: bool = False) -> Backend:
    """Replace the ops on cached keys and values; see `FlashInferAttention`."""
    attention = FlashInferAttention(device, in_graphs=in_graphs)
    return replace(
        backend,
        attention="flashinfer",
        # Only where whoever replays plans before it, which `in_graphs` promises.
        graph_support=GraphSupport(
            in_graphs, None if in_graphs else "flashinfer plans on the host before every launch"
        ),
        store_kv=store_kv,
        attend=attention.attend,
        attend_with_lse=attention.attend_with_lse,
        merge_states=merge_states,  # FlashInfer's gives NaN where both states see nothing
    )


class FlashInferAttention:
    """Run FlashInfer's paged wrappers, planned once for all metadata and kind of heads.

    In a CUDA graph nothing can be planned. With `in_graphs`, `plan` is called before a capture and
    again before each replay, with metadata of the same sizes: it refills the buffers that belong
    to those sizes, which the captured launches read.
    """

    def __init__(self, device: torch.device, *, in_graphs: bool = False) -> None:
        import flashinfer  # not on every machine

        self._flashinfer = flashinfer
        self._device = device
        self._in_graphs = in_graphs
        self._triton = TritonAttention(device)
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._wrappers: dict[tuple[object, ...], Any] = {}
        self._planned: tuple[AttentionMetadata, Heads, Any] | None = None

    def plan(self, metadata: AttentionMetadata, heads: Heads) -> Any:
        """Copy the lengths to the host and plan the wrapper that runs it; waits for the device.

        Raises:
            RuntimeError: a CUDA graph is being captured.
        """
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("flashinfer cannot plan within a CUDA graph: call plan before it")
        spans = find_spans(metadata.qo_lens, tuple(metadata.kv_lens.tolist()))
        pages = [-(-length // metadata.page_size) for length in spans.lengths]
        page_starts = _int32((0, *accumulate(pages)))
        # The last page of a span that sees nothing holds 0 rows, as FlashInfer counts.
        last = _int32(
            length - max(0, held - 1) * metadata.page_size
            for length, held in zip(spans.lengths, pages, strict=True)
        )
        indices = _pages_of(metadata, spans, pages)
        wrapper = self._wrapper(spans, metadata, heads)
        types = {"q_data_type": heads.dtype, "kv_data_type": heads.kv_dtype}
        sizes = (heads.q_heads, heads.kv_heads, heads.dim, metadata.page_size)
        if max(spans.qo_lens) == 1:
            wrapper.plan(page_starts, indices, last, *sizes, **types)
        else:
            cu_seqlens_q = _int32((0, *accumulate(spans.qo_lens)))
            causal = spans.is_causal
            wrapper.plan(cu_seqlens_q, page_starts, indices, last, *sizes, causal=causal, **types)
        self._planned = (metadata, heads, wrapper)
        return wrapper

    def attend(
        self, q: Tensor, kv: LayerKV, metadata: AttentionMetadata, tree_kv: TreeKV | None
    ) -> Tensor:
        return self.attend_with_lse(q, kv, metadata, tree_kv)[0]

    def attend_with_lse(
        self, q: Tensor, kv: LayerKV, metadata: AttentionMetadata, tree_kv: TreeKV | None
    ) -> tuple[Tensor, Tensor]:
        """Attend to the pages, then to tree KV, and merge; FlashInfer's lse is of base 2."""
        if not q.shape[0]:
            return q.clone(), q.new_empty(q.shape[:2], dtype=torch.float32)
        heads = Heads(q.shape[1], kv.k.shape[1], q.shape[2], q.dtype, kv.k.dtype)
        paged = tuple(x.view(-1, metadata.page_size, *x.shape[1:]) for x in (kv.k, kv.v))
        scales = {} if kv.scale == UNSCALED else {"k_scale": kv.scale.k, "v_scale": kv.scale.v}
        out, lse = self._wrapper_for(metadata, heads).run(
            q.contiguous(), paged, return_lse=True, **scales
        )
        # FlashInfer's infinity is finite.
        lse = (lse * LN_2).masked_fill(metadata.kv_lens[:, None] == 0, -torch.inf)
        if tree_kv is None:
            return out, lse
        nothing = replace(metadata, kv_lens=torch.zeros_like(metadata.kv_lens), max_kv_len=0)
        tree_state = self._triton.attend_with_lse(q, replace(kv, scale=UNSCALED), nothing, tree_kv)
        return merge_states(out, lse, *tree_state)

    def _wrapper_for(self, metadata: AttentionMetadata, heads: Heads) -> Any:
        planned = self._planned
        is_capturing = torch.cuda.is_current_stream_capturing()
        if (
            planned is None
            or planned[1] != heads
            or (planned[0] is not metadata and not is_capturing)
        ):
            return self.plan(metadata, heads)
        return planned[2]

    def _wrapper(self, spans: Spans, metadata: AttentionMetadata, heads: Heads) -> Any:
        # In graphs one for each size, as it owns the buffers that launches of that size read.
        batch, width = len(spans.owners), metadata.page_table.shape[1]
        is_decode = max(spans.qo_lens) == 1
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
        return self._flashinfer.BatchDecodeWithPagedKVCacheWrapper(
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
        return self._flashinfer.BatchPrefillWithPagedKVCacheWrapper(
            self._workspace, "NHD", self._in_graphs, **buffers
        )

    def _int32_buffer(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.int32, device=self._device)


def _int32(numbers: Any) -> Tensor:
    return torch.tensor(tuple(numbers), dtype=torch.int32)


def _pages_of(metadata: AttentionMetadata, spans: Spans, pages: list[int]) -> Tensor:
    # The page ids of all spans, one after the other, [sum(pages)] i32 on the device.
    owners = torch.tensor(spans.owners, dtype=torch.int64)
    counts = torch.tensor(pages, dtype=torch.int64)
    rows = owners.repeat_interleave(counts)
    columns = torch.cat([torch.arange(count) for count in pages])
    device = metadata.page_table.device
    return metadata.page_table[rows.to(device), columns.to(device)].to(torch.int32)
