"""Keeping the rows of the accepted path."""

import torch
from torch import Tensor


def take_path(values: Tensor, path: Tensor) -> Tensor:
    """Gather row by row."""
    index = path.view(*path.shape, *(1,) * (values.dim() - 2))
    return values.gather(1, index.expand(-1, -1, *values.shape[2:]))


def move_kv(
    k_pool: Tensor,
    v_pool: Tensor,
    page_table: Tensor,
    slots: Tensor,
    lengths: Tensor,
    path: Tensor,
    page_size: int,
) -> None:
    """Gather all rows before any is written, since one's place may be another's source."""
    steps = torch.arange(path.shape[1], device=path.device)

    def pool_rows(nodes: Tensor) -> Tensor:
        positions = lengths[:, None] + nodes
        pages = page_table[slots[:, None], positions // page_size]
        return (pages * page_size + positions % page_size).flatten()

    sources, places = pool_rows(path), pool_rows(steps)
    k_pool[:, places] = k_pool[:, sources]
    v_pool[:, places] = v_pool[:, sources]
