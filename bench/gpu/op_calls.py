"""One call of every op but attention, on small random tensors; each call returns tensors."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from specdecode_kernels import (
    INT4,
    INT8,
    MXFP4,
    NVFP4,
    Backend,
    DeltaShape,
    DraftedNodes,
    ExpertRouting,
    ExpertWeights,
    GatedActivation,
    LayerKV,
    PenaltyParamsBatch,
    Precision,
    RoutingConfig,
    SamplingParamsBatch,
    quantize,
)
from specdecode_kernels.testing.gated_delta import DeltaForm, ancestry_of, delta_rows

BATCH, NODES, VOCAB, HIDDEN = 3, 7, 1000, 128
PARENTS = (0, 0, 0, 1, 1, 2, 3)

Calls = dict[str, Callable[[Backend], object]]


def op_calls(device: torch.device) -> Calls:
    """Every op by name; the tensors are the same each time this is asked."""
    draw = _Draw(torch.Generator().manual_seed(0), device)
    on_rows = _elementwise(draw) | _trees(draw) | _paths(draw) | _sampling(draw)
    return on_rows | _mixtures(draw) | _recurrent(device)


class _Draw:
    def __init__(self, generator: torch.Generator, device: torch.device) -> None:
        self._generator = generator
        self.device = device

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, generator=self._generator).to(self.device, dtype)

    def below(self, high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=self._generator).to(self.device)

    def numbers(self, *values: float, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self.device)


def _elementwise(draw: _Draw) -> Calls:
    half = torch.bfloat16
    x, update = draw.normal(5, HIDDEN, dtype=half), draw.normal(5, HIDDEN, dtype=half)
    weight, qkv = draw.normal(HIDDEN, dtype=half), draw.normal(5, 8, 16, dtype=half)
    cos, sin = draw.normal(5, 8, dtype=half), draw.normal(5, 8, dtype=half)
    k_pool, v_pool = (draw.normal(32, 2, 16, dtype=half) for _ in range(2))
    rows, logits = draw.numbers(3, 9, 4, 30, 1, dtype=torch.int64), draw.normal(5, 40) * 30

    def store(ops: Backend) -> object:
        ops.store_kv(LayerKV(k_pool, v_pool), rows, qkv[:, :2], qkv[:, 2:4])
        return k_pool, v_pool

    def turn_and_store(ops: Backend) -> object:
        new = qkv[:, :4].clone(), qkv[:, 4:6].clone(), qkv[:, 6:]
        turned = ops.rope_and_store_kv(LayerKV(k_pool, v_pool), rows, *new, cos, sin)
        return *turned, k_pool, v_pool

    return {
        "rms_norm": lambda ops: ops.rms_norm(x, weight, 1e-5),
        "add_rms_norm": lambda ops: ops.add_rms_norm(x, update, weight, 1e-5),
        "apply_rope": lambda ops: ops.apply_rope(qkv[:, :4], qkv[:, 4:6], cos, sin),
        "silu_and_mul": lambda ops: ops.silu_and_mul(x[:, :64], x[:, 64:]),
        "gelu_tanh_and_mul": lambda ops: ops.gelu_tanh_and_mul(x[:, :64], x[:, 64:]),
        "softcap": lambda ops: ops.softcap(logits, 30.0),
        "route_experts": lambda ops: ops.route_experts(
            logits, RoutingConfig(top_k=8, scores="softmax", is_normalized=True), None
        ),
        "store_kv": store,
        "rope_and_store_kv": turn_and_store,
    }


def _trees(draw: _Draw) -> Calls:
    candidates = draw.numbers(-1, -1, 0, 0, 1, 1, dtype=torch.int64).expand(BATCH, 6).contiguous()
    first = -draw.normal(BATCH, 2).abs()
    scores = torch.cat([first, first[:, [0, 0, 1, 1]] - draw.normal(BATCH, 4).abs()], dim=1)
    parents = draw.numbers(*PARENTS, dtype=torch.int64).expand(BATCH, NODES).contiguous()
    tokens = draw.below(3, BATCH, NODES)
    drafted = draw.numbers(0, 1, 2, 0, 1, 2, dtype=torch.int64).expand(BATCH, -1).contiguous()
    ids = draw.below(9, BATCH, 6)
    return {
        "select_tree_nodes": lambda ops: ops.select_tree_nodes(scores, ids, candidates, 4),
        "build_tree_mask": lambda ops: ops.build_tree_mask(parents, 3),
        "verify_chain": lambda ops: ops.verify_chain(tokens, drafted),
        "verify_tree": lambda ops: ops.verify_tree(tokens, drafted, parents, 4),
    }


def _paths(draw: _Draw) -> Calls:
    values, path = draw.normal(BATCH, NODES, 40), draw.below(NODES, BATCH, 4)
    k_pool, v_pool = (draw.normal(2, 64, 2, 8, dtype=torch.bfloat16) for _ in range(2))
    pages = torch.arange(16, device=draw.device).view(2, 8)
    slots, lengths = (draw.numbers(*of, dtype=torch.int64) for of in ((1, 0), (5, 9)))
    kept = torch.tensor([[0, 2, 5, 5], [0, 1, 3, 6]], device=draw.device)

    def compact(ops: Backend) -> object:
        ops.compact_kv(k_pool, v_pool, pages, slots, lengths, kept, 4)
        return k_pool, v_pool

    return {"gather_accepted": lambda ops: ops.gather_accepted(values, path), "compact_kv": compact}


def _sampling(draw: _Draw) -> Calls:
    logits, positions = draw.normal(BATCH, NODES, VOCAB), draw.below(50, BATCH, NODES)
    parents = draw.numbers(*PARENTS, dtype=torch.int64).expand(BATCH, NODES).contiguous()
    penalties = PenaltyParamsBatch(
        counts=draw.below(2, 1, VOCAB).float(),
        in_prompt=draw.below(2, 1, VOCAB).bool(),
        bias=draw.normal(1, VOCAB),
        states=draw.numbers(0, -1, -1, dtype=torch.int64),
        numbers=torch.tensor([[1.3, 0.2, 0.1]] + [[1.0, 0, 0]] * 2).to(draw.device, torch.float64),
    )
    params = SamplingParamsBatch(
        temperature=draw.numbers(0.7, 0.0, 1.2),
        top_k=draw.numbers(40, 0, 0).long(),
        top_p=draw.numbers(0.9, 1.0, 1.0),
        min_p=draw.numbers(0.01, 0.0, 0.0),
        seeds=draw.numbers(3, 4, 5).long(),
        is_filtered=True,
    )
    drafted = DraftedNodes(draw.below(VOCAB, BATCH, NODES - 1), parents, 3)
    return {
        "apply_penalties": lambda ops: ops.apply_penalties(logits, penalties, drafted),
        "sample": lambda ops: ops.sample(logits, params, positions, None),
    }


def _mixtures(draw: _Draw) -> Calls:
    experts, top_k, inner, rows = 8, 2, 64, 21
    gate_up, down = (
        draw.normal(experts, outputs, inputs) * inputs**-0.5
        for outputs, inputs in ((2 * inner, HIDDEN), (HIDDEN, inner))
    )
    half = torch.bfloat16
    x, ids = draw.normal(rows, HIDDEN, dtype=half), draw.normal(rows, experts).topk(top_k).indices
    routing = ExpertRouting(ids.int(), torch.full(ids.shape, 1 / top_k, device=draw.device))
    weights = ExpertWeights(gate_up.to(half), down.to(half))

    stored = {"int8": INT8, "int4": INT4, "mxfp4": MXFP4, "nvfp4": NVFP4}

    def linear(precision: Precision) -> Callable[[Backend], object]:
        weight = quantize(gate_up[0].to(half), precision)
        return lambda ops: ops.linear(x, weight, None)

    def mixture(precision: Precision) -> Callable[[Backend], object]:
        parts = [quantize(one.to(half), precision) for one in (gate_up, down)]
        quantized = ExpertWeights(parts[0], parts[1])
        return lambda ops: ops.experts(x, routing, quantized, GatedActivation("silu"))

    return {
        "experts": lambda ops: ops.experts(x, routing, weights, GatedActivation("silu")),
        **{f"linear, {name}": linear(precision) for name, precision in stored.items()},
        **{f"experts, {name}": mixture(stored[name]) for name in ("mxfp4", "nvfp4")},
    }


def _recurrent(device: torch.device) -> Calls:
    form = DeltaForm(DeltaShape(2, 4, 64, 64, 4), torch.bfloat16, nodes=NODES)
    convolution = replace(form, shape=DeltaShape.of_convolution(256, 3))
    marks = ancestry_of([PARENTS] * BATCH, device)

    def delta(is_tree: bool, form: DeltaForm = form) -> Callable[[Backend], object]:
        rows = delta_rows(range(BATCH), [NODES] * BATCH, 0, marks if is_tree else None, device)

        def run(ops: Backend) -> object:
            state = form.draw_state(1, device)
            inputs = form.draw_inputs(BATCH * NODES, 2, device)
            return ops.gated_delta(*inputs, form.draw_params(3, device), state, 1, rows)

        return run

    def keep(ops: Backend) -> object:
        state = form.draw_state(4, device)
        state.drafted.fill_(0.5)
        state.drafted_gates.fill_(0.5)
        slots, accepted = (torch.tensor(each, device=device) for each in ([2, 0, 1], [3, 0, 6]))
        ops.keep_drafted(form.draw_params(5, device), state, slots, None, accepted)
        return state.inputs, state.matrices.to(torch.bfloat16)

    return {
        "gated_delta, chains": delta(is_tree=False),
        "gated_delta, trees": delta(is_tree=True),
        "gated_delta, convolution": delta(is_tree=True, form=convolution),
        "keep_drafted": keep,
    }
