"""One call of every op that has a Triton kernel, on small tensors, and backends to call them by."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specdecode_kernels.backend import TORCH, Backend
from specdecode_kernels.choice import Kernels
from specdecode_kernels.cpu import with_cpu_attention, with_cpu_ops, with_fused_layers
from specdecode_kernels.metadata import (
    DraftedNodes,
    PenaltyParamsBatch,
    SamplingParamsBatch,
)
from specdecode_kernels.mixture import (
    ExpertRouting,
    ExpertWeights,
    GatedActivation,
    GateKind,
    RoutingConfig,
)
from specdecode_kernels.packed_weights import AnyWeight, SumOrder
from specdecode_kernels.quantize import INT4, quantize
from specdecode_kernels.recurrent import DeltaShape
from specdecode_kernels.testing.attention import Shape, draw_case
from specdecode_kernels.testing.gated_delta import DeltaForm, ancestry_of, delta_rows
from specdecode_kernels.weights import Precision, QuantizedTensor

B, N, V = 2, 7, 300  # batch, nodes, vocabulary
PARENTS = [0, 0, 0, 1, 1, 2, 3]

Calls = dict[str, Callable[[Backend], object]]


def backend_of(
    name: Kernels,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    sums: SumOrder = "inputs",
) -> Backend:
    """Build the backend whose every op is by one implementation, as far as that has it."""
    if name == "torch":
        return TORCH
    if name == "cpu":
        backend = with_cpu_attention(with_cpu_ops(TORCH, dtype, sums), dtype)
        return with_fused_layers(backend, dtype)
    from specdecode_kernels.triton.backend import with_triton_attention, with_triton_ops

    return with_triton_attention(with_triton_ops(TORCH), device, workspace_bytes=1 << 20)


def calls(device: torch.device) -> Calls:
    """Every op with a Triton kernel by name, ready to be called by a backend of bfloat16."""
    return _calls_on_rows(device) | _calls_on_cache(device) | _calls_on_states(device)


def _calls_on_cache(device: torch.device) -> Calls:
    case = draw_case(Shape(dtype=torch.bfloat16), 0).to(device)
    q, slot_mapping = case.q, torch.tensor([1, 2], device=device)
    new = torch.zeros_like(case.kv.k[:2])
    angles = torch.zeros(2, q.shape[2] // 2, device=device)
    lse = torch.zeros(q.shape[:2], device=device)
    return {
        "store_kv": lambda ops: ops.store_kv(case.kv, slot_mapping, new, new),
        "rope_and_store_kv": lambda ops: ops.rope_and_store_kv(
            case.kv, slot_mapping, case.q[:2], new, new, angles, angles
        ),
        "attend": case.attend,
        "merge_states": lambda ops: ops.merge_states(q, lse, q, lse),
    }


def _calls_on_states(device: torch.device) -> Calls:
    shape = DeltaShape(1, 2, 32, 32, 4)
    state = DeltaForm(shape, torch.bfloat16, nodes=N).draw_state(0, device)
    slots, accepted = (torch.tensor(each, device=device) for each in ([2, 1], [3, 0]))
    params = DeltaForm(shape).draw_params(0, device)
    state.drafted.fill_(0.5)
    state.drafted_gates.fill_(0.5)
    return {
        "gated_delta": lambda ops: call_gated_delta(ops, device, shape, torch.bfloat16, PARENTS),
        "keep_drafted": lambda ops: ops.keep_drafted(params, state, slots, None, accepted),
    }


def call_gated_delta(
    ops: Backend,
    device: torch.device,
    shape: DeltaShape,
    dtype: torch.dtype,
    parents: Sequence[int] | None,
) -> Tensor:
    """Call a layer on drafts of two requests: trees, or chains of N rows without parents."""
    form = DeltaForm(shape, dtype, nodes=N)
    marks = None if parents is None else ancestry_of([parents] * B, device)
    rows = delta_rows([2, 1], [N, N], 0, marks, device)
    inputs = form.draw_inputs(B * N, 1, device)
    given = form.draw_params(2, device), form.draw_state(3, device)
    return ops.gated_delta(*inputs, *given, 1, rows)


def call_experts(
    ops: Backend,
    device: torch.device,
    kind: GateKind,
    dtype: torch.dtype,
    *,
    has_bias: bool,
    precision: Precision | None = None,
) -> Tensor:
    """Call a mixture of 4 experts, of which a row uses 2, on three rows."""
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    def pack(plain: Tensor) -> AnyWeight:
        return _packed(ops, plain if precision is None else _quantized(plain, precision))

    experts, width, inner = 4, 32, 16
    if precision is not None and precision.group:
        width, inner = 4 * precision.group, 2 * precision.group
    weights = ExpertWeights(
        pack(normal(experts, 2 * inner, width)),
        pack(normal(experts, width, inner)),
        normal(experts, 2 * inner) if has_bias else None,
        normal(experts, width) if has_bias else None,
    )
    ids = torch.tensor([[2, 0], [0, 1], [2, 1]], dtype=torch.int32, device=device)
    factors = torch.tensor([[0.7, 0.3], [0.5, 0.5], [0.9, 0.2]], device=device)
    routing, activation = ExpertRouting(ids, factors), GatedActivation(kind)
    return ops.experts(normal(3, width), routing, weights, activation)


def _packed(ops: Backend, weight: Tensor | QuantizedTensor) -> AnyWeight:
    return weight if ops.pack_weight is None else ops.pack_weight(weight)


def call_weight(device: torch.device, precision: Precision) -> QuantizedTensor:
    """Make a quantized weight for rows [3, 96] of bfloat16."""
    plain = torch.randn(80, 96, generator=torch.Generator().manual_seed(2)).bfloat16()
    return _quantized(plain, precision).on(device)


def _quantized(plain: Tensor, precision: Precision) -> QuantizedTensor:
    """Quantize a weight, with zero points of 1 if the precision has any."""
    weight = quantize(plain, precision)
    if not precision.has_zeros:
        return weight
    return replace(weight, zeros=torch.ones_like(weight.scales, dtype=torch.int8))


def _sampling_params(device: torch.device) -> SamplingParamsBatch:
    def numbers(*values: float) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device)

    return SamplingParamsBatch(
        temperature=numbers(0.7, 0.0),
        top_k=numbers(40, 0).long(),
        top_p=numbers(0.9, 1.0),
        min_p=numbers(0.01, 0.0),
        seeds=numbers(3, 4).long(),
        is_filtered=True,
    )


def _calls_on_rows(device: torch.device) -> Calls:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    def below(high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=generator).to(device)

    def rows(*values: object) -> Tensor:
        return torch.tensor(values, device=device)

    half = torch.bfloat16
    x, weight = normal(3, 96, dtype=half), normal(96, dtype=half)
    qkv, angles = normal(3, 8, 16, dtype=half), normal(3, 8)
    nodes, parents = rows(*[[-1, -1, 0, 0, 1, 1]] * B), rows(*[PARENTS] * B)
    scores = -normal(B, 2).abs()
    scores = torch.cat([scores, scores[:, [0, 0, 1, 1]] - normal(B, 4).abs()], dim=1)
    pool, slots = normal(2, 64, 2, 8, dtype=half), rows(*range(16)).view(2, 8)
    paths, lengths = rows([0, 2, 5, 5], [0, 1, 3, 6]), rows(5, 9)
    logits, positions = normal(B, N, V), below(50, B, N)
    penalties = PenaltyParamsBatch(
        counts=below(2, 1, V).float(),
        in_prompt=below(2, 1, V).bool(),
        bias=normal(1, V),
        states=rows(0, -1),
        numbers=torch.tensor([[1.3, 0.2, 0.1], [1, 0, 0]], dtype=torch.float64, device=device),
    )
    return {
        "rms_norm": lambda ops: ops.rms_norm(x, weight, 1e-5),
        "add_rms_norm": lambda ops: ops.add_rms_norm(x, x, weight, 1e-5),
        "apply_rope": lambda ops: ops.apply_rope(qkv[:, :4], qkv[:, 4:6], angles, angles),
        "linear": lambda ops: ops.linear(x, _packed(ops, call_weight(device, INT4)), None),
        "route_experts": lambda ops: ops.route_experts(
            x, RoutingConfig(top_k=4, scores="softmax", is_normalized=True), None
        ),
        "experts": lambda ops: call_experts(ops, device, "silu", half, has_bias=False),
        "silu_and_mul": lambda ops: ops.silu_and_mul(x[:, :48], x[:, 48:]),
        "gelu_tanh_and_mul": lambda ops: ops.gelu_tanh_and_mul(x[:, :48], x[:, 48:]),
        "softcap": lambda ops: ops.softcap(logits[0], 30.0),
        "select_tree_nodes": lambda ops: ops.select_tree_nodes(scores, below(9, B, 6), nodes, 4),
        "build_tree_mask": lambda ops: ops.build_tree_mask(parents, 3),
        "verify_chain": lambda ops: ops.verify_chain(below(2, B, N), below(2, B, N - 1)),
        "verify_tree": lambda ops: ops.verify_tree(below(9, B, N), below(9, B, N - 1), parents, 4),
        "gather_accepted": lambda ops: ops.gather_accepted(logits, below(N, B, 4)),
        "compact_kv": lambda ops: ops.compact_kv(
            pool, pool.clone(), slots, rows(1, 0), lengths, paths, 4
        ),
        "apply_penalties": lambda ops: ops.apply_penalties(
            logits, penalties, DraftedNodes(below(V, B, N - 1), parents, 3)
        ),
        "sample": lambda ops: ops.sample(logits, _sampling_params(device), positions, below(V, V)),
    }
