"""Launchers of linear maps and of the ops that treat every row alone.

Weights are packed in the order in which C reads them; tensors that C does not take go to torch.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from specdecode_kernels.backend import Backend
from specdecode_kernels.cpu.bookkeeping import append_tokens, lay_out_rows, verify_chain
from specdecode_kernels.cpu.experts import experts
from specdecode_kernels.cpu.gated_delta import CpuGatedDelta
from specdecode_kernels.cpu.library import Library
from specdecode_kernels.cpu.loading import load_for
from specdecode_kernels.cpu.low_rank import add_low_rank
from specdecode_kernels.cpu.packing import pack_weight
from specdecode_kernels.low_rank import PackedLowRank
from specdecode_kernels.metadata import as_rows
from specdecode_kernels.packed_weights import PackedWeight, SumOrder
from specdecode_kernels.torch import elementwise as reference
from specdecode_kernels.torch import linear as linear_reference
from specdecode_kernels.torch.kv_cache import rope_then_store
from specdecode_kernels.weights import QuantizedTensor


def with_cpu_ops(backend: Backend, dtype: torch.dtype, sums: SumOrder = "inputs") -> Backend:
    """Replace the ops that take most of a step on a CPU; weights are packed for one order of sums.

    Raises:
        CannotCompile: see `unsupported_reason`.
    """
    library = load_for(dtype, sums)
    delta = CpuGatedDelta(library)
    rope = partial(apply_rope, library)
    return replace(
        backend,
        name="cpu",
        sum_order=sums,
        linear=partial(linear, library),
        map_heads=partial(map_heads, library),
        pack_weight=partial(pack_weight, library, sums=sums),
        add_low_rank=partial(add_low_rank, library),
        pack_low_rank=PackedLowRank.of,
        experts=partial(experts, library),
        rms_norm=partial(rms_norm, library),
        add_rms_norm=partial(add_rms_norm, library),
        apply_rope=rope,
        rope_and_store_kv=rope_then_store(rope, backend.store_kv),
        silu_and_mul=partial(silu_and_mul, library),
        gelu_tanh_and_mul=partial(gelu_tanh_and_mul, library),
        softcap=partial(softcap, library),
        gated_delta=delta.gated_delta,
        keep_drafted=delta.keep_drafted,
        verify_chain=partial(verify_chain, library),
        append_tokens=partial(append_tokens, library),
        lay_out_rows=partial(lay_out_rows, library),
    )


def linear(
    library: Library,
    x: Tensor,
    weight: Tensor | QuantizedTensor | PackedWeight,
    bias: Tensor | None,
) -> Tensor:
    if not isinstance(weight, PackedWeight):
        return linear_reference.linear(x, weight, bias)
    if x.stride(1) != 1:
        x = x.contiguous()
    bias = None if bias is None else bias.contiguous()
    rows = x.shape[0]
    out = torch.empty(rows, weight.shape[0], dtype=x.dtype)
    library.linear(
        weight.address,
        None if bias is None else bias.data_ptr(),
        x.data_ptr(),
        x.stride(0),
        out.data_ptr(),
        rows,
    )
    return out


def map_heads(library: Library, x: Tensor, weight: Tensor | PackedWeight) -> Tensor:
    if not isinstance(weight, PackedWeight):
        return linear_reference.map_heads(x, weight)
    if x.stride(2) != 1:
        x = x.contiguous()
    rows, heads = x.shape[:2]
    out = torch.empty(rows, heads, weight.shape[1], dtype=x.dtype)
    library.map_heads(weight.address, heads, x.data_ptr(), *x.stride()[:2], out.data_ptr(), rows)
    return out


def rms_norm(library: Library, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    if not _takes(library, x, weight):
        return reference.rms_norm(x, weight, eps)
    rows = as_rows(x)
    out = torch.empty(x.shape, dtype=x.dtype)
    library.rms_norm(
        rows.data_ptr(),
        rows.stride(0),
        weight.data_ptr(),
        weight.dtype != library.dtype,
        eps,
        out.data_ptr(),
        *rows.shape,
    )
    return out


def add_rms_norm(
    library: Library, x: Tensor, update: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    if not _takes(library, x, weight):
        return reference.add_rms_norm(x, update, weight, eps)
    if update.dim() > x.dim():
        update = reference.add_parts(update)
    rows, updates = as_rows(x), as_rows(update)
    summed, normed = torch.empty(x.shape, dtype=x.dtype), torch.empty(x.shape, dtype=x.dtype)
    library.add_rms_norm(
        rows.data_ptr(),
        rows.stride(0),
        updates.data_ptr(),
        updates.stride(0),
        weight.data_ptr(),
        weight.dtype != library.dtype,
        eps,
        summed.data_ptr(),
        normed.data_ptr(),
        *rows.shape,
    )
    return summed, normed


def _takes(library: Library, x: Tensor, weight: Tensor) -> bool:
    """Whether C takes the arguments of a norm: its weight may be wider than the rows."""
    is_known = weight.dtype in (library.dtype, torch.float32)
    return x.dtype == library.dtype and is_known and weight.is_contiguous()


def apply_rope(
    library: Library, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    """Launch on q and k [rows, heads, dim], which it writes over, if their heads lie together."""
    takes_angles = cos.dtype == sin.dtype == torch.float32
    if not takes_angles or not q.dtype == k.dtype == library.dtype:
        return reference.apply_rope(q, k, cos, sin)
    q, k = with_heads_together(q), with_heads_together(k)
    cos, sin = cos.contiguous(), sin.contiguous()
    library.apply_rope(
        q.data_ptr(),
        q.stride(0),
        q.shape[1],
        k.data_ptr(),
        k.stride(0),
        k.shape[1],
        cos.data_ptr(),
        sin.data_ptr(),
        q.shape[0],
        q.shape[2],
    )
    return q, k


def silu_and_mul(library: Library, gate: Tensor, up: Tensor) -> Tensor:
    if not gate.dtype == up.dtype == library.dtype:
        return reference.silu_and_mul(gate, up)
    return _gated(library.silu_and_mul, gate, up)


def gelu_tanh_and_mul(library: Library, gate: Tensor, up: Tensor) -> Tensor:
    if not gate.dtype == up.dtype == library.dtype:
        return reference.gelu_tanh_and_mul(gate, up)
    return _gated(library.gelu_tanh_and_mul, gate, up)


def _gated(launch: Callable[..., None], gate: Tensor, up: Tensor) -> Tensor:
    rows, others = as_rows(gate), as_rows(up)
    out = torch.empty(gate.shape, dtype=gate.dtype)
    launch(
        rows.data_ptr(),
        rows.stride(0),
        others.data_ptr(),
        others.stride(0),
        out.data_ptr(),
        *rows.shape,
    )
    return out


def softcap(library: Library, x: Tensor, cap: float) -> Tensor:
    """Launch on float32 logits, whatever the type of the model."""
    if x.dtype != torch.float32:
        return reference.softcap(x, cap)
    x = x.contiguous()
    out = torch.empty_like(x)
    library.softcap(x.data_ptr(), cap, out.data_ptr(), x.numel())
    return out


def with_heads_together(x: Tensor) -> Tensor:
    """Copy x [rows, heads, dim] unless every row's heads lie side by side."""
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()
