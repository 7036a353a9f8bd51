"""The public ops of a layer: arguments are checked here, once; then torch or a kernel computes.

Ops on cached keys and values take the backend that whoever holds the pool has chosen; without one
they run the reference.
"""

import torch
from torch import Tensor

from specdecode_kernels import reference
from specdecode_kernels.backends import TORCH, AttentionBackend
from specdecode_kernels.implementation import implementation_for
from specdecode_kernels.layout import AttentionLayout, KvScale, Tail
from specdecode_kernels.native import elementwise
from specdecode_kernels.native.linear import PackedWeight, map_rows
from specdecode_kernels.reference.pool import FLOAT8, dequantised

UNSCALED = KvScale()


def linear(x: Tensor, weight: Tensor | PackedWeight, bias: Tensor | None = None) -> Tensor:
    """Map x [rows, inputs] by weight [outputs, inputs] and bias [outputs]: [rows, outputs]."""
    if x.dim() != 2 or len(weight.shape) != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(
            f"linear: weight {list(weight.shape)} does not fit rows of {list(x.shape)}"
        )
    if isinstance(weight, PackedWeight):
        if x.dtype != weight.dtype:
            raise ValueError(
                f"linear: a packed weight of {weight.dtype} takes no rows of {x.dtype}"
            )
        return map_rows(x, weight, bias)
    return reference.linear(x, weight, bias)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale every row to root mean square 1, then by `weight`; x [..., dim], weight [dim]."""
    if weight.dim() != 1 or x.shape[-1:] != weight.shape:
        raise ValueError(
            f"rms_norm: weight {list(weight.shape)} does not fit rows of {list(x.shape)}"
        )
    chosen = implementation_for(x)
    if chosen == "native":
        return elementwise.rms_norm(x, weight, eps)
    if chosen == "triton":
        from specdecode_kernels.triton import rms_norm as kernel

        return kernel.rms_norm(x, weight, eps)
    return reference.rms_norm(x, weight, eps)


def add_rms_norm(x: Tensor, update: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Add two tensors [..., dim] and norm the sum; returns the sum and its norm, as `rms_norm`."""
    if update.shape != x.shape or update.dtype != x.dtype:
        raise ValueError(
            f"add_rms_norm: x {list(x.shape)} {x.dtype} and update {list(update.shape)} "
            f"{update.dtype} must have one shape and type"
        )
    if weight.dim() != 1 or x.shape[-1:] != weight.shape:
        raise ValueError(
            f"add_rms_norm: weight {list(weight.shape)} does not fit rows of {list(x.shape)}"
        )
    chosen = implementation_for(x)
    if chosen == "native":
        return elementwise.add_rms_norm(x, update, weight, eps)
    if chosen == "triton":
        from specdecode_kernels.triton import add_rms_norm as kernel

        return kernel.add_rms_norm(x, update, weight, eps)
    return reference.add_rms_norm(x, update, weight, eps)


def apply_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate q and k [rows, heads, dim] by the angles of their rows; cos, sin [rows, dim / 2].

    The first half of a head pairs with its second half, as in Hugging Face's Llama. A kernel writes
    over q and k, the reference does not: use what is returned and nothing else.
    """
    rows, dim = q.shape[0], q.shape[-1]
    if q.dim() != 3 or k.dim() != 3 or k.shape[0] != rows or k.shape[-1] != dim:
        raise ValueError(
            f"apply_rope: q {list(q.shape)} and k {list(k.shape)} must both be [rows, heads, dim]"
        )
    if dim % 2 or cos.shape != (rows, dim // 2) or sin.shape != cos.shape:
        raise ValueError(
            f"apply_rope: cos {list(cos.shape)} and sin {list(sin.shape)} must be "
            f"[{rows}, {dim}/2], with an even head dimension"
        )
    chosen = implementation_for(q)
    if chosen == "native":
        return elementwise.apply_rope(q, k, cos, sin)
    if chosen == "triton":
        from specdecode_kernels.triton import apply_rope as kernel

        return kernel.apply_rope(q, k, cos, sin)
    return reference.apply_rope(q, k, cos, sin)


def silu_and_mul(gate: Tensor, up: Tensor) -> Tensor:
    """Gate one projection by the SiLU of another: silu(gate) * up, both [..., dim]."""
    if gate.shape != up.shape:
        raise ValueError(
            f"silu_and_mul: gate {list(gate.shape)} and up {list(up.shape)} must have one shape"
        )
    chosen = implementation_for(gate)
    if chosen == "native":
        return elementwise.silu_and_mul(gate, up)
    if chosen == "triton":
        from specdecode_kernels.triton import silu_and_mul as kernel

        return kernel.silu_and_mul(gate, up)
    return reference.silu_and_mul(gate, up)


def store_kv(
    k_pool: Tensor,
    v_pool: Tensor,
    rows: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: KvScale = UNSCALED,
    backend: AttentionBackend = TORCH,
) -> None:
    """Write k and v [n, kv_heads, dim] to the pool rows `rows` [n] i64, in place.

    They are cast to the pools' type; float8 pools hold them divided by `scale`.
    """
    _check_pools(k_pool, v_pool, scale)
    wanted = (*rows.shape, *k_pool.shape[1:])
    if rows.dim() != 1 or k.shape != wanted or v.shape != wanted:
        raise ValueError(
            f"store_kv: k {list(k.shape)} and v {list(v.shape)} must be {list(wanted)}, "
            f"one row for each of rows {list(rows.shape)}"
        )
    backend.store_kv(k_pool, v_pool, rows, k, v, scale)


def load_kv(
    k_pool: Tensor,
    v_pool: Tensor,
    rows: Tensor,
    dtype: torch.dtype,
    *,
    scale: KvScale = UNSCALED,
) -> tuple[Tensor, Tensor]:
    """Read the pool rows `rows` [n] i64 as attention reads them: k and v [n, kv_heads, dim]."""
    _check_pools(k_pool, v_pool, scale)
    k, v = reference.load_rows(k_pool, rows), reference.load_rows(v_pool, rows)
    return dequantised(k, scale.k, dtype), dequantised(v, scale.v, dtype)


def attend(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    layout: AttentionLayout,
    tail: Tail | None = None,
    *,
    scale: KvScale = UNSCALED,
    backend: AttentionBackend = TORCH,
) -> Tensor:
    """Attend from q [rows, q_heads, dim] to what `layout` and `tail` show; same shape as q.

    Pools are [pool_rows, kv_heads, dim], of q's type or float8, then read times `scale`. Prefix and
    tail share one softmax. Rows that no query row of their request sees may hold anything, NaN
    included.
    """
    _check_attention(q, k_pool, v_pool, layout, tail, scale)
    return backend.attend(q, k_pool, v_pool, layout, tail, scale)


def attend_with_lse(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    layout: AttentionLayout,
    tail: Tail | None = None,
    *,
    scale: KvScale = UNSCALED,
    backend: AttentionBackend = TORCH,
) -> tuple[Tensor, Tensor]:
    """Attend, and answer the natural log-sum-exp of each row's scores as well.

    It is [rows, q_heads] f32, f64 for such queries; -inf where a row sees nothing.
    """
    _check_attention(q, k_pool, v_pool, layout, tail, scale)
    return backend.attend_with_lse(q, k_pool, v_pool, layout, tail, scale)


def merge_states(
    out_a: Tensor,
    lse_a: Tensor,
    out_b: Tensor,
    lse_b: Tensor,
    *,
    backend: AttentionBackend = TORCH,
) -> tuple[Tensor, Tensor]:
    """Merge two attentions of the same queries over rows that differ, as `attend_with_lse` gives.

    Outs are [rows, q_heads, dim], lses [rows, q_heads]; so is the result. A state with an lse of
    -inf saw nothing: it adds nothing, whatever its out holds.
    """
    fits = out_a.dim() == 3 and out_b.shape == out_a.shape and out_b.dtype == out_a.dtype
    if not fits or not lse_a.shape == lse_b.shape == out_a.shape[:2]:
        raise ValueError(
            f"merge_states: outs {list(out_a.shape)} {out_a.dtype} and {list(out_b.shape)} "
            f"{out_b.dtype} must both be [rows, heads, dim], and lses {list(lse_a.shape)} and "
            f"{list(lse_b.shape)} [rows, heads]"
        )
    return backend.merge_states(out_a, lse_a, out_b, lse_b)


def _check_attention(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    layout: AttentionLayout,
    tail: Tail | None,
    scale: KvScale,
) -> None:
    _check_pools(k_pool, v_pool, scale)
    kv_heads, dim = k_pool.shape[1:]
    if q.dim() != 3 or q.shape[0] != layout.visible.shape[0] or q.shape[2] != dim:
        raise ValueError(
            f"attend: q {list(q.shape)} must be [{layout.visible.shape[0]}, q_heads, {dim}]"
        )
    if q.shape[1] % kv_heads:
        raise ValueError(f"attend: {q.shape[1]} query heads cannot share {kv_heads} kv heads")
    if k_pool.dtype not in (q.dtype, FLOAT8):
        raise ValueError(f"attend: pools of {k_pool.dtype} must be of q's {q.dtype} or {FLOAT8}")
    if k_pool.shape[0] % layout.page_size:
        raise ValueError(
            f"attend: {k_pool.shape[0]} pool rows are no whole number of pages "
            f"of {layout.page_size} rows"
        )
    if tail is not None:
        _check_tail(tail, layout, q.dtype, kv_heads, dim)


def _check_pools(k_pool: Tensor, v_pool: Tensor, scale: KvScale) -> None:
    if k_pool.dim() != 3 or v_pool.shape != k_pool.shape or v_pool.dtype != k_pool.dtype:
        raise ValueError(
            f"k_pool {list(k_pool.shape)} {k_pool.dtype} and v_pool {list(v_pool.shape)} "
            f"{v_pool.dtype} must both be [pool_rows, kv_heads, dim], of one type"
        )
    if scale != UNSCALED and k_pool.dtype != FLOAT8:
        raise ValueError(f"{scale} is for pools of {FLOAT8}; pools of {k_pool.dtype} have none")


def _check_tail(
    tail: Tail, layout: AttentionLayout, dtype: torch.dtype, kv_heads: int, dim: int
) -> None:
    if len(set(layout.query_lens)) > 1:
        raise ValueError(
            f"attend: a tail needs the same number of query rows in every request, "
            f"not {layout.query_lens}; split the batch"
        )
    queries = layout.query_lens[0] if layout.query_lens else 0
    batch = len(layout.query_lens)
    if (tail.k.shape[0], *tail.k.shape[2:]) != (batch, kv_heads, dim):
        raise ValueError(
            f"attend: the tail's k {list(tail.k.shape)} must be [{batch}, rows, {kv_heads}, {dim}]"
        )
    if tail.k.dtype != dtype or tail.v.dtype != dtype:
        raise ValueError(f"attend: a tail of {tail.k.dtype} must be of q's {dtype}")
    if batch and tail.mask.shape[1] != queries:
        raise ValueError(
            f"attend: the tail's mask {list(tail.mask.shape)} must have {queries} rows per request"
        )
