"""A decoder layer in one call of C has the bits of its ops, and writes the same keys and values."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specdecode_engine.model.kv_cache import KVCache
from specdecode_engine.model.kv_views import PagedView
from specdecode_engine.model.layer_map import LayerMap, LayerShape
from specdecode_engine.model.layers import (
    Attention,
    DecoderLayer,
    Linear,
    Mlp,
    Norm,
    QkNorm,
    fused_layer,
)
from specdecode_kernels import INT4, INT8, AttentionMetadata, AttentionParams, Precision, quantize
from specdecode_kernels.testing import backend_of
from tests.kernels.launched import launches

CPU = torch.device("cpu")
HIDDEN, INNER, Q_HEADS, KV_HEADS, DIM = 72, 88, 4, 2, 16
PAGES, PAGE_SIZE, REQUESTS, ROWS = 9, 4, 2, 3
PARTS: dict[str, dict[str, object]] = {
    "plain": {},
    "biases": {"has_bias": True},
    "head norms": {"has_qk_norm": True},
    "wide norms and gelu": {"norm_dtype": torch.float32, "is_gelu": True},
    "window and softcap": {"params": AttentionParams(logit_softcap=9.0, sliding_window=5)},
    "int8": {"precision": INT8},
    "int4": {"precision": INT4},
}


def draw_layer(
    dtype: torch.dtype,
    *,
    has_bias: bool = False,
    has_qk_norm: bool = False,
    is_gelu: bool = False,
    norm_dtype: torch.dtype | None = None,
    precision: Precision | None = None,
    params: AttentionParams = AttentionParams(),  # noqa: B008
) -> DecoderLayer:
    ops = backend_of("cpu", CPU, dtype)

    def linear(outputs: int, inputs: int) -> Linear:
        weight = (torch.randn(outputs, inputs) / inputs**0.5).to(dtype)
        bias = torch.randn(outputs).to(dtype) if has_bias else None
        assert ops.pack_weight is not None
        stored = weight if precision is None else quantize(weight, precision)
        return Linear(ops, ops.pack_weight(stored), bias)

    def norm(dim: int, eps: float) -> Norm:
        return Norm(ops, (1 + torch.randn(dim) / 8).to(norm_dtype or dtype), eps)

    attention = Attention(
        ops=ops,
        qkv=linear((Q_HEADS + 2 * KV_HEADS) * DIM, HIDDEN),
        output=linear(HIDDEN, Q_HEADS * DIM),
        q_heads=Q_HEADS,
        kv_heads=KV_HEADS,
        head_dim=DIM,
        qk_norm=QkNorm(norm(DIM, 1e-6), norm(DIM, 1e-5)) if has_qk_norm else None,
        params=params,
    )
    activate = ops.gelu_tanh_and_mul if is_gelu else ops.silu_and_mul
    mlp = Mlp(activate, gate_up=linear(2 * INNER, HIDDEN), down=linear(HIDDEN, INNER))
    return DecoderLayer(norm(HIDDEN, 1e-5), attention, norm(HIDDEN, 1e-6), mlp)


def chains(layer: DecoderLayer, length: int) -> tuple[PagedView, Tensor]:
    """Lay out chains after `length` cached rows in shuffled pages; and their positions."""
    layer_map = LayerMap.build([LayerShape(kv_heads=KV_HEADS, k_head_dim=DIM, v_head_dim=DIM)], [0])
    ops = layer.attention.ops
    pool = KVCache(layer_map, PAGES, PAGE_SIZE, layer.attention.qkv.weight.dtype, CPU, ops=ops)
    generator = torch.Generator().manual_seed(length)
    for kv in pool.groups[0].k, pool.groups[0].v:
        kv.copy_(torch.randn(kv.shape, generator=generator))
    table = (1 + torch.randperm(PAGES - 1, generator=generator)).view(REQUESTS, -1)
    positions = length + torch.arange(ROWS)
    slots = table[:, positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE
    rows = positions.repeat(REQUESTS)
    seen = length + ROWS
    layout = AttentionMetadata(table, PAGE_SIZE, (ROWS,) * REQUESTS, rows + 1, seen)
    return PagedView(pool, slots.flatten(), layout), rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", PARTS)
def test_one_call_has_the_bits_of_the_ops(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(5)
    with launches() as counts:  # entered first: a backend binds the C functions when it is made
        parts = draw_layer(dtype, **PARTS[name])  # type: ignore[arg-type]
        whole = fused_layer(parts)
        assert whole.fused is not None
        found = []
        for layer in (parts, whole):
            torch.manual_seed(6)
            x = torch.randn(REQUESTS * ROWS, HIDDEN).to(dtype)
            view, positions = chains(layer, length=8)
            angles = positions[:, None] * torch.linspace(0.1, 1, DIM // 2)
            counts.clear()
            output = layer(x, (angles.cos(), angles.sin()), 0, view)
            found.append((output, view.pool.groups[0].k, view.pool.groups[0].v))
            assert (counts == {"decoder_layer": 1}) is (layer is whole)
    for own, wanted in zip(*found, strict=True):
        assert torch.isfinite(own).all()
        assert torch.equal(own, wanted)


def test_a_layer_with_more_parts_is_computed_op_by_op() -> None:
    layer = draw_layer(torch.float32)
    assert fused_layer(replace(layer, input_norm=None)).fused is None
    assert fused_layer(replace(layer, mlp=lambda x: x)).fused is None
    gated = replace(layer.attention, gate_dim=DIM)
    assert fused_layer(replace(layer, attention=gated)).fused is None
    plain = Linear(layer.attention.ops, torch.zeros(HIDDEN, Q_HEADS * DIM))
    assert (
        fused_layer(replace(layer, attention=replace(layer.attention, output=plain))).fused is None
    )


def test_nodes_of_trees_are_attended_op_by_op() -> None:
    view, _ = chains(draw_layer(torch.float32), length=8)
    assert view.own_rows(0) is not None
    mask = torch.eye(ROWS, dtype=torch.bool).expand(REQUESTS, ROWS, ROWS)
    assert PagedView(view.pool, view.slot_mapping, view.layout, mask).own_rows(0) is None
