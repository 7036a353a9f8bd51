"""Keeping the rows of the accepted path."""

import torch
from torch import Tensor

from specdecode_kernels.torch.kv_cache import as_bits


def gather_accepted(values: Tensor, path: Tensor) -> Tensor:
    """Gather row by row."""
    index = path.view(*path.shape, *(1,) * (values.dim() - 2))
    return values.gather(1, index.expand(-1, -1, *values.shape[2:]))


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
