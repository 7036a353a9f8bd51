"""Rows of the KV cache: where they lie, how they are written and moved, what entries mean."""

from collections.abc import Callable

import torch
from torch import Tensor

from specdecode_kernels.metadata import FLOAT8, LayerKV, RowIndices, RowSpec

Pair = tuple[Tensor, Tensor]
ApplyRope = Callable[[Tensor, Tensor, Tensor, Tensor], Pair]
StoreKV = Callable[[LayerKV, Tensor, Tensor, Tensor], None]
RopeAndStoreKV = Callable[[LayerKV, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Pair]
"""As the ops of a backend."""


def store_kv(kv: LayerKV, slot_mapping: Tensor, k: Tensor, v: Tensor) -> None:
    for rows, new, scale in ((kv.k, k, kv.scale.k), (kv.v, v, kv.scale.v)):
        stored = quantised(new, scale) if rows.dtype == FLOAT8 else new.to(rows.dtype)
        as_bits(rows).index_copy_(0, slot_mapping, as_bits(stored))


def rope_then_store(rope: ApplyRope, store: StoreKV) -> RopeAndStoreKV:
    """Make `rope_and_store_kv` of the two ops of a backend."""

    def rope_and_store_kv(
        kv: LayerKV,
        slot_mapping: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cos: Tensor,
        sin: Tensor,
    ) -> tuple[Tensor, Tensor]:
        q, k = rope(q, k, cos, sin)
        store(kv, slot_mapping, k, v)
        return q, k

    return rope_and_store_kv


def load_kv(kv: LayerKV, slot_mapping: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    k, v = (as_bits(rows)[slot_mapping].view(rows.dtype) for rows in (kv.k, kv.v))
    return dequantised(k, kv.scale.k, dtype), dequantised(v, kv.scale.v, dtype)


def lay_out_rows(spec: RowSpec) -> RowIndices:
    pages, page_size, columns, req_indices, lengths, start, offsets, lowest = spec
    rows, positions = req_indices, lengths + start if start else lengths
    if offsets is not None:
        rows = rows.repeat_interleave(len(offsets))
        positions = (positions[:, None] + offsets).view(-1)
    if lowest is not None:
        positions = torch.maximum(positions, lowest[rows])
    slots = pages[rows, positions // page_size] * page_size + positions % page_size
    return RowIndices(rows, positions, slots, positions + 1, pages[req_indices, :columns])


def compact_kv(
    k: Tensor,
    v: Tensor,
    page_table: Tensor,
    req_indices: Tensor,
    lengths: Tensor,
    path: Tensor,
    page_size: int,
) -> None:
    """Gather all rows before any is written, since one's place may be another's source."""
    steps = torch.arange(path.shape[1], device=path.device)

    def rows_of(nodes: Tensor) -> Tensor:
        positions = lengths[:, None] + nodes
        pages = page_table[req_indices[:, None], positions // page_size]
        return (pages * page_size + positions % page_size).flatten()

    sources, places = rows_of(path), rows_of(steps)
    for rows in (as_bits(k), as_bits(v)):
        rows[:, places] = rows[:, sources]


def as_bits(rows: Tensor) -> Tensor:
    """View float8 as bytes, to copy it: not every device has arithmetic on float8."""
    return rows.view(torch.uint8) if rows.dtype == FLOAT8 else rows


def quantised(x: Tensor, scale: float) -> Tensor:
    """Divide by the scale and round to float8; what is too great becomes the greatest."""
    most = torch.finfo(FLOAT8).max
    return (x.float() * (1.0 / scale)).clamp(-most, most).to(FLOAT8)


def dequantised(x: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """Undo `quantised` where x is float8, in `dtype`; leave anything else as it is."""
    return x.to(dtype) * scale if x.dtype == FLOAT8 else x
