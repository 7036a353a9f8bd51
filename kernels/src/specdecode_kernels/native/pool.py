"""The launcher that writes new rows into the pools."""

from torch import Tensor

from specdecode_kernels import launches
from specdecode_kernels.native.elementwise import with_heads_together
from specdecode_kernels.native.library import library


def store_kv(k_pool: Tensor, v_pool: Tensor, rows: Tensor, k: Tensor, v: Tensor) -> None:
    """Copy k and v [n, kv_heads, dim] to rows [n] i64 of contiguous pools of their type."""
    launches.count("store_kv", "native")
    k, v, rows = with_heads_together(k), with_heads_together(v), rows.contiguous()
    library(k.dtype).store_kv(
        k_pool.data_ptr(),
        v_pool.data_ptr(),
        rows.data_ptr(),
        k.data_ptr(),
        k.stride(0),
        v.data_ptr(),
        v.stride(0),
        k.shape[0],
        k_pool.stride(0),
    )
