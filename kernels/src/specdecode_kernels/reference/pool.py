"""Rows of the pools: how they are written, and what their entries mean when read."""

import torch
from torch import Tensor

from specdecode_kernels.layout import KvScale

FLOAT8 = torch.float8_e4m3fn
"""Four bits of exponent, three of mantissa, no infinity; entries are multiplied by a scale."""


def store_kv(
    k_pool: Tensor, v_pool: Tensor, rows: Tensor, k: Tensor, v: Tensor, scale: KvScale
) -> None:
    """Copy row by row; which of two writes to one row wins is left open."""
    for pool, new, by in ((k_pool, k, scale.k), (v_pool, v, scale.v)):
        if pool.dtype == FLOAT8:
            # Copied as bits: float8 has no arithmetic of its own.
            pool.view(torch.uint8).index_copy_(0, rows, quantised(new, by).view(torch.uint8))
        else:
            pool.index_copy_(0, rows, new.to(pool.dtype))


def load_rows(pool: Tensor, rows: Tensor) -> Tensor:
    """Gather rows [n] i64 of a pool, in its own type."""
    if pool.dtype == FLOAT8:
        return pool.view(torch.uint8)[rows].view(FLOAT8)
    return pool[rows]


def quantised(x: Tensor, scale: float) -> Tensor:
    """Divide by the scale and round to float8; what is too great becomes the greatest."""
    most = torch.finfo(FLOAT8).max
    return (x.float() * (1.0 / scale)).clamp(-most, most).to(FLOAT8)


def dequantised(x: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """Undo `quantised` where x is float8, in `dtype`; leave anything else as it is."""
    return x.to(dtype) * scale if x.dtype == FLOAT8 else x
