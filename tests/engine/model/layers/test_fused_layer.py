"""Decoder layers in one call of C have the bits of their ops, and write the same rows."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from specdecode_engine.model.kv.draft_scratch import DraftScratch
from specdecode_engine.model.kv.kv_cache import KVCache, WindowPool
from specdecode_engine.model.kv.kv_views import PagedView, ScratchView
from specdecode_engine.model.kv.layer_map import LayerMap, LayerShape
from specdecode_engine.model.layers.layers import (
    Attention,
    DecoderLayer,
    Linear,
    Mlp,
    Norm,
    QkNorm,
    fused_layer,
    map_and_collect,
    map_by_layers,
)
from specdecode_kernels import (
    INT4,
    INT8,
    MXFP4,
    NVFP4,
    AttentionMetadata,
    AttentionParams,
    Precision,
    quantize,
)
from specdecode_kernels.testing import backend_of
from tests.kernels.launched import launches

CPU = torch.device("cpu")
HIDDEN, INNER, Q_HEADS, KV_HEADS, DIM = 72, 88, 4, 2, 16
REQUESTS, ROWS, LENGTH = 2, 3, 8
TEXT = LENGTH + ROWS + 1
PARTS: dict[str, dict[str, object]] = {
    "plain": {},
    "biases": {"has_bias": True},
    "head norms": {"has_qk_norm": True},
    "wide norms and gelu": {"norm_dtype": torch.float32, "is_gelu": True},
    "window and softcap": {"params": AttentionParams(logit_softcap=9.0, sliding_window=5)},
    "int8": {"precision": INT8},
    "int4": {"precision": INT4},
    "mxfp4": {"precision": MXFP4},
    "nvfp4": {"precision": NVFP4},
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
    inputs: int = HIDDEN,
) -> DecoderLayer[Attention]:
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
        qkv=linear((Q_HEADS + 2 * KV_HEADS) * DIM, inputs),
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


@dataclass(frozen=True)
class Batch:
    """Rows after `LENGTH` cached ones in shuffled pages of a pool of random numbers."""

    pool: KVCache
    scratch: DraftScratch
    view: PagedView | ScratchView
    positions: Tensor

    def written(self) -> list[Tensor]:
        groups = (*self.pool.groups, *self.scratch.groups)
        return [rows for group in groups for rows in (group.k, group.v)]


def make_batch(layers: Sequence[DecoderLayer[Attention]], kind: str, page_size: int) -> Batch:
    ops, dtype = layers[0].attention.ops, layers[0].attention.qkv.weight.dtype
    windows = [layer.attention.params.sliding_window for layer in layers]
    shapes = [
        LayerShape(kv_heads=KV_HEADS, k_head_dim=DIM, v_head_dim=DIM, sliding_window=one)
        for one in windows
    ]
    layer_map = LayerMap.build(shapes)
    generator = torch.Generator().manual_seed(len(layers))
    pages = 1 + REQUESTS * (-(-TEXT // page_size))
    moved = torch.cat((torch.zeros(1, dtype=torch.int64), 1 + torch.randperm(pages - 1)))
    window_pages = None if kind.startswith("drafted") else WindowPool(moved, pages)
    pool = KVCache(layer_map, pages, page_size, dtype, CPU, ops=ops, windows=window_pages)
    scratch = DraftScratch(layer_map, REQUESTS + 1, 3 * ROWS, dtype, CPU)
    for groups in (pool.groups, scratch.groups):
        for group in groups:
            for rows in (group.k, group.v):
                rows.copy_(torch.randn(rows.shape, generator=generator))
    table = (1 + torch.randperm(pages - 1, generator=generator)).view(REQUESTS, -1)
    view, positions = VIEWS[kind](pool, scratch, table)
    return Batch(pool, scratch, view, positions)


def layout(
    table: Tensor, page_size: int, counts: tuple[int, ...], lens: Tensor
) -> AttentionMetadata:
    return AttentionMetadata(table, page_size, counts, lens, TEXT)


def chain_view(pool: KVCache, scratch: DraftScratch, table: Tensor) -> tuple[PagedView, Tensor]:
    positions = LENGTH + torch.arange(ROWS)
    slots = table[:, positions // pool.page_size] * pool.page_size + positions % pool.page_size
    rows = positions.repeat(REQUESTS)
    seen = layout(table, pool.page_size, (ROWS,) * REQUESTS, rows + 1)
    return PagedView(pool, slots.flatten(), seen), rows


def tree_view(pool: KVCache, scratch: DraftScratch, table: Tensor) -> tuple[PagedView, Tensor]:
    """Nodes 1 and 2 are children of node 0 in one tree, and of one another in the other."""
    chain, rows = chain_view(pool, scratch, table)
    seen = layout(table, pool.page_size, (ROWS,) * REQUESTS, torch.full_like(rows, LENGTH))
    forked = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]]).bool()
    mask = torch.stack((forked, torch.ones(ROWS, ROWS).tril().bool()))
    return PagedView(pool, chain.slot_mapping, seen, mask), rows


def part_of_tree_view(
    pool: KVCache, scratch: DraftScratch, table: Tensor
) -> tuple[PagedView, Tensor]:
    """The second request verifies its root alone; its other nodes have the row of another."""
    whole, rows = tree_view(pool, scratch, table)
    kept, nodes = ROWS + 1, torch.tensor([[0, 1, 2], [3, 2, 2]])
    lens = torch.full((kept,), LENGTH)
    seen = layout(table, pool.page_size, (ROWS, 1), lens)
    return PagedView(pool, whole.slot_mapping[:kept], seen, whole.ancestry, nodes), rows[:kept]


def drafted_chain_view(
    pool: KVCache, scratch: DraftScratch, table: Tensor
) -> tuple[ScratchView, Tensor]:
    lens = torch.full((REQUESTS,), LENGTH)
    seen = layout(table, pool.page_size, (1,) * REQUESTS, lens)
    return ScratchView(pool, scratch, 2, seen), lens + 2


def drafted_tree_view(
    pool: KVCache, scratch: DraftScratch, table: Tensor
) -> tuple[ScratchView, Tensor]:
    lens = torch.full((REQUESTS * ROWS,), LENGTH)
    seen = layout(table, pool.page_size, (ROWS,) * REQUESTS, lens)
    mask = torch.rand(REQUESTS, ROWS, 2 * ROWS).round().bool()
    mask[:, :, ROWS:] = torch.eye(ROWS).bool()
    return ScratchView(pool, scratch, ROWS, seen, mask), lens + 1


VIEWS: dict[str, Callable[..., tuple[PagedView | ScratchView, Tensor]]] = {
    "chains": chain_view,
    "trees": tree_view,
    "parts of trees": part_of_tree_view,
    "drafted chains": drafted_chain_view,
    "drafted trees": drafted_tree_view,
}


def check(
    counts: Counter[str],
    layers: list[DecoderLayer[Attention]],
    kind: str,
    calls: int,
    page_size: int = 4,
    read: Tensor | None = None,
) -> None:
    """Compare layers in `calls` calls of C with their ops."""
    fused = [fused_layer(layer) for layer in layers]
    found = []
    for each in (layers, fused):
        torch.manual_seed(6)
        batch = make_batch(layers, kind, page_size)
        x = torch.randn(len(batch.positions), HIDDEN).to(layers[0].attention.qkv.weight.dtype)
        angles = batch.positions[:, None] * torch.linspace(0.1, 1, DIM // 2)
        rotary = angles.cos(), angles.sin()
        counts.clear()
        own_read = None if read is None else read[: len(x)]
        output = map_by_layers(each, x, rotary, 0, batch.view, own_read)
        assert counts["decoder_layers"] == (calls if each is fused else 0)
        assert each is layers or len(counts) == 1
        found.append((output, *batch.written()))
    for own, wanted in zip(*found, strict=True):
        assert torch.isfinite(own).all()
        assert torch.equal(own, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", VIEWS)
@pytest.mark.parametrize("name", PARTS)
def test_one_call_has_the_bits_of_the_ops(name: str, kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(5)
    with launches() as counts:  # entered first: a backend binds the C functions when it is made
        parts = PARTS[name]
        layers = [draw_layer(dtype, **parts) for _ in range(2)]  # type: ignore[arg-type]
        check(counts, layers, kind, calls=1)


@pytest.mark.parametrize("kind", VIEWS)
@pytest.mark.parametrize("page_size", [1, 2, 16])
def test_pages_of_every_size_are_read_and_written(page_size: int, kind: str) -> None:
    torch.manual_seed(5)
    with launches() as counts:
        check(
            counts,
            [draw_layer(torch.float32) for _ in range(2)],
            kind,
            calls=1,
            page_size=page_size,
        )


@pytest.mark.parametrize("kind", VIEWS)
def test_layers_that_are_placed_otherwise_have_calls_of_their_own(kind: str) -> None:
    torch.manual_seed(5)
    windowed = AttentionParams(sliding_window=5)
    with launches() as counts:
        layers = [
            draw_layer(torch.float32, params=params)
            for params in (AttentionParams(), windowed, windowed, AttentionParams())
        ]
        # Windows of a draft have no pages of their own.
        check(counts, layers, kind, calls=1 if kind.startswith("drafted") else 3)


@pytest.mark.parametrize("kind", VIEWS)
def test_a_layer_of_a_draft_may_read_a_pair_instead_of_the_stream(kind: str) -> None:
    torch.manual_seed(5)
    with launches() as counts:
        first = draw_layer(torch.float32, inputs=2 * HIDDEN)
        layers = [replace(first, input_norm=None), draw_layer(torch.float32)]
        check(counts, layers, kind, calls=1, read=torch.randn(REQUESTS * ROWS, 2 * HIDDEN))
        check(counts, [replace(draw_layer(torch.float32), input_norm=None)], kind, calls=1)


def test_layers_op_by_op_norm_the_stream_in_the_call_that_adds_to_it() -> None:
    torch.manual_seed(5)
    with launches() as counts:
        layers = [draw_layer(torch.bfloat16) for _ in range(3)]
        batch = make_batch(layers, "chains", 4)
        x = torch.randn(len(batch.positions), HIDDEN).bfloat16()
        angles = batch.positions[:, None] * torch.linspace(0.1, 1, DIM // 2)
        rotary = angles.cos(), angles.sin()
        one_by_one = x
        for number, layer in enumerate(layers):
            one_by_one = layer(one_by_one, rotary, number, batch.view)
        counts.clear()
        output, ends = map_and_collect(layers, x, rotary, 0, batch.view, (0, 1))
        assert (counts["rms_norm"], counts["add_rms_norm"]) == (1, 5)
        assert torch.equal(output, one_by_one)
        assert torch.equal(ends[0], layers[0](x, rotary, 0, batch.view))
        assert torch.equal(ends[1], layers[1](ends[0], rotary, 1, batch.view))


@pytest.mark.parametrize("ends", [(0,), (1, 3), (2,), (3,), (0, 1, 2, 3), (7,)])
@pytest.mark.parametrize("windows", [(None, None, None, None), (None, 5, 5, None)])
def test_streams_between_layers_are_those_of_the_layers_one_by_one(
    ends: tuple[int, ...], windows: tuple[int | None, ...]
) -> None:
    torch.manual_seed(5)
    layers = [
        draw_layer(torch.float32, params=AttentionParams(sliding_window=one)) for one in windows
    ]
    found = []
    for each in (layers, [fused_layer(layer) for layer in layers]):
        torch.manual_seed(6)
        batch = make_batch(layers, "chains", 4)
        x = torch.randn(len(batch.positions), HIDDEN)
        angles = batch.positions[:, None] * torch.linspace(0.1, 1, DIM // 2)
        rotary = angles.cos(), angles.sin()
        output, streams = map_and_collect(each, x, rotary, 0, batch.view, ends)
        assert len(streams) == len([end for end in ends if end < len(layers)])
        found.append([output, *streams, *batch.written()])
    for own, wanted in zip(*found, strict=True):
        assert torch.equal(own, wanted)


def test_no_rows_need_no_call() -> None:
    layer = fused_layer(draw_layer(torch.float32))
    nothing = torch.zeros(0, dtype=torch.int64)
    batch = make_batch([layer], "chains", 4)
    seen = AttentionMetadata(torch.zeros(0, 1, dtype=torch.int64), 4, (), nothing, 0)
    angles = torch.zeros(0, DIM // 2)
    view = PagedView(batch.pool, nothing, seen)
    x = torch.zeros(0, HIDDEN)
    assert map_by_layers([layer], x, (angles, angles), 0, view).shape == (0, HIDDEN)


def test_a_layer_with_more_parts_is_computed_op_by_op() -> None:
    layer = draw_layer(torch.float32)
    assert fused_layer(replace(layer, mlp=lambda x: x)).fused is None
    gated = replace(layer.attention, gate_dim=DIM)
    assert fused_layer(replace(layer, attention=gated)).fused is None
    plain = Linear(layer.attention.ops, torch.zeros(HIDDEN, Q_HEADS * DIM))
    assert (
        fused_layer(replace(layer, attention=replace(layer.attention, output=plain))).fused is None
    )
