"""Public ops that keep what belongs to the accepted path. Letters: B batch, N nodes, W path."""

import torch
from torch import Tensor

from specdecode_kernels import reference
from specdecode_kernels.implementation import implementation_for
from specdecode_kernels.reference.pool import FLOAT8


def take_path(values: Tensor, path: Tensor) -> Tensor:
    """Keep the rows of the path: values [B, N, ...] and path [B, W] i64 to [B, W, ...]."""
    if values.dim() < 2 or path.dim() != 2 or values.shape[0] != path.shape[0]:
        raise ValueError(
            f"take_path: values {list(values.shape)} must be [batch, nodes, ...] and path "
            f"{list(path.shape)} [batch, steps]"
        )
    if implementation_for(values) == "triton":
        from specdecode_kernels.triton import take_path as kernel

        return kernel.take_path(values, path)
    return reference.take_path(values, path)


def move_kv(
    k_pool: Tensor,
    v_pool: Tensor,
    page_table: Tensor,
    slots: Tensor,
    lengths: Tensor,
    path: Tensor,
    page_size: int,
) -> None:
    """Move the path's rows of every layer to where a chain would have written them, in place.

    Node j of request b lies at position lengths[b] + j; step i of the path goes to lengths[b] + i.
    All of a request's rows are read before any is written. Requests share no rows.

    Args:
        k_pool, v_pool: [layers, pool_rows, kv_heads, dim], contiguous; row = page * page_size +
            offset.
        page_table: [slots, pages] i64, rows contiguous.
        slots, lengths: [B] i64.
        path: [B, W] i64.
    """
    if k_pool.dim() != 4 or v_pool.shape != k_pool.shape or page_table.dim() != 2:
        raise ValueError(
            f"move_kv: pools {list(k_pool.shape)} and {list(v_pool.shape)} must both be [layers, "
            f"rows, kv_heads, dim] and page_table {list(page_table.shape)} [slots, pages]"
        )
    if not (k_pool.is_contiguous() and v_pool.is_contiguous() and page_table.is_contiguous()):
        raise ValueError("move_kv: pools and page_table must be contiguous; pass them whole")
    if path.dim() != 2 or slots.shape != path.shape[:1] or lengths.shape != slots.shape:
        raise ValueError(
            f"move_kv: slots {list(slots.shape)} and lengths {list(lengths.shape)} must be one "
            f"number for each row of path {list(path.shape)}"
        )
    if page_size < 1 or k_pool.shape[1] % page_size:
        raise ValueError(
            f"move_kv: {k_pool.shape[1]} pool rows are no whole number of pages of {page_size} rows"
        )
    if k_pool.dtype == FLOAT8:
        # Moved as bits: not every device has arithmetic on float8.
        k_pool, v_pool = k_pool.view(torch.uint8), v_pool.view(torch.uint8)
    if implementation_for(k_pool) == "triton":
        from specdecode_kernels.triton import move_kv as kernel

        kernel.move_kv(k_pool, v_pool, page_table, slots, lengths, path, page_size)
    else:
        reference.move_kv(k_pool, v_pool, page_table, slots, lengths, path, page_size)
