"""Launchers of what a step computes of tokens and positions."""

import torch
from torch import Tensor

from specdecode_kernels.cpu.library import Library
from specdecode_kernels.metadata import RowIndices, RowSpec


def verify_chain(library: Library, choices: Tensor, drafted: Tensor) -> Tensor:
    choices, drafted = (x if x.stride(1) == 1 else x.contiguous() for x in (choices, drafted))
    batch, count = drafted.shape
    accepted = torch.empty(batch, dtype=torch.int64)
    library.verify_chain(
        choices.data_ptr(),
        choices.stride(0),
        drafted.data_ptr(),
        drafted.stride(0),
        accepted.data_ptr(),
        batch,
        count,
    )
    return accepted


def append_tokens(
    library: Library,
    sequences: Tensor,
    lengths: Tensor,
    req_indices: Tensor,
    starts: Tensor,
    offsets: Tensor,
    tokens: Tensor,
    accepted: Tensor,
) -> None:
    tokens = tokens if tokens.stride(1) == 1 else tokens.contiguous()
    batch, count = tokens.shape
    library.append_tokens(
        sequences.data_ptr(),
        sequences.stride(0),
        lengths.data_ptr(),
        req_indices.data_ptr(),
        starts.data_ptr(),
        offsets.data_ptr(),
        tokens.data_ptr(),
        tokens.stride(0),
        accepted.data_ptr(),
        batch,
        count,
    )


def lay_out_rows(library: Library, spec: RowSpec) -> RowIndices:
    offsets, lowest = spec.offsets, spec.lowest
    batch, count = spec.req_indices.shape[0], 1 if offsets is None else offsets.shape[0]
    rows = torch.empty(4, batch * count, dtype=torch.int64)
    page_table = torch.empty(batch, spec.columns, dtype=torch.int64)
    library.lay_out_rows(
        spec.pages.data_ptr(),
        spec.pages.stride(0),
        spec.page_size,
        spec.req_indices.data_ptr(),
        spec.lengths.data_ptr(),
        spec.start,
        None if offsets is None else offsets.data_ptr(),
        None if lowest is None else lowest.data_ptr(),
        rows.data_ptr(),
        batch,
        count,
        page_table.data_ptr(),
        spec.columns,
    )
    req_indices, positions, slots, kv_lens = rows.unbind()
    return RowIndices(req_indices, positions, slots, kv_lens, page_table)
