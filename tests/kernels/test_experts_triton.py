"""The kernels of a mixture: sorted blocks, rows against plain arithmetic, bits in any batch."""

import pytest
import torch
from torch import Tensor

from specdecode_kernels import (
    TORCH,
    ExpertRouting,
    ExpertWeights,
    GatedActivation,
)
from specdecode_kernels.mixture import GateKind
from specdecode_kernels.triton.sort_pairs import CHUNK, most_blocks, sort_pairs
from tests.kernels.launched import launches
from tests.kernels.mixtures import (
    EXPERTS,
    INNER,
    KINDS,
    TOP_K,
    WIDTH,
    computed_one_by_one,
    draw_routing,
    draw_weights,
    normal,
)
from tests.kernels.quantized import FLOAT4, FORMS, draw_quantized
from tests.kernels.tensors import inside_wider
from tests.kernels.triton_ops import TRITON

TOLERANCE = {torch.float32: 1e-5, torch.float16: 0.01, torch.bfloat16: 0.1}
SILU = GatedActivation("silu")


def to(
    device: torch.device, weights: ExpertWeights, routing: ExpertRouting
) -> tuple[ExpertWeights, ExpertRouting]:
    """Move the weights and the routing of a mixture."""
    parts = (weights.gate_up, weights.down, weights.gate_up_bias, weights.down_bias)
    moved = [part.to(device) if isinstance(part, Tensor) else None for part in parts]
    assert moved[0] is not None
    assert moved[1] is not None
    return (
        ExpertWeights(moved[0], moved[1], *moved[2:]),
        ExpertRouting(*(part.to(device) for part in routing)),
    )


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *((kind, torch.float32) for kind in KINDS),
        ("silu", torch.float16),
        ("silu", torch.bfloat16),
        ("swigluoai", torch.bfloat16),
    ],
    ids=str,
)
def test_rows_are_sums_over_their_experts(
    kind: GateKind, dtype: torch.dtype, device: torch.device
) -> None:
    weights, routing = draw_weights(dtype), draw_routing(7)
    x, activation = normal(7, WIDTH).to(dtype), GatedActivation(kind, limit=1.5)
    wanted = computed_one_by_one(x, routing, weights, activation)
    there, chosen = to(device, weights, routing)
    with launches() as counts:
        got = TRITON.experts(inside_wider(x).to(device), chosen, there, activation)
    assert counts == {"sort_pairs": 1, "map_pairs": 2, "combine": 1}
    assert got.dtype == dtype
    torch.testing.assert_close(got.double().cpu(), wanted, atol=TOLERANCE[dtype], rtol=0.01)


@pytest.mark.usefixtures("row_independent_dot")
def test_rows_have_the_same_bits_alone_and_in_batches(device: torch.device) -> None:
    """One expert has more rows than a block."""
    rows = 20
    ids = torch.tensor([[row % 3, 5] for row in range(rows)]).int()
    drawn = ExpertRouting(ids, torch.rand(rows, 2))
    weights, routing = to(device, draw_weights(torch.float32, has_bias=False), drawn)
    x = normal(rows, WIDTH).to(device)

    def compute(*chosen: int) -> Tensor:
        some = list(chosen)
        part = ExpertRouting(routing.ids[some], routing.weights[some])
        return TRITON.experts(x[some], part, weights, SILU)

    together = compute(*range(rows))
    assert torch.equal(compute(0)[0], together[0])
    assert torch.equal(compute(7, 18, 18, 2), together[[7, 18, 18, 2]])


def test_experts_without_rows_are_not_read_and_rows_do_not_mix(device: torch.device) -> None:
    weights = draw_weights(torch.float32)
    routing = ExpertRouting(torch.tensor([[1, 4], [4, 4], [1, 8]]).int(), torch.rand(3, 2))
    x = normal(3, WIDTH)
    x[2] = torch.nan
    wanted = computed_one_by_one(x[:2], ExpertRouting(*(p[:2] for p in routing)), weights, SILU)
    for part in (weights.gate_up, weights.down, weights.gate_up_bias, weights.down_bias):
        assert isinstance(part, Tensor)
        part[[0, 2, 3, 5, 6, 7]] = torch.nan
    there, chosen = to(device, weights, routing)
    got = TRITON.experts(x.to(device), chosen, there, SILU).cpu()
    torch.testing.assert_close(got[:2].double(), wanted, atol=1e-5, rtol=0.01)
    assert got[2].isnan().all()


def test_a_gate_with_a_limit_keeps_what_is_not_a_number(device: torch.device) -> None:
    weights, routing = to(device, draw_weights(torch.float32), draw_routing(2))
    x = normal(2, WIDTH)
    x[1, 3] = torch.nan
    got = TRITON.experts(x.to(device), routing, weights, GatedActivation("swigluoai"))
    assert got.isnan().all(dim=1).tolist() == [False, True]


def test_no_rows_launch_nothing(device: torch.device) -> None:
    none = ExpertRouting(torch.empty(0, TOP_K, dtype=torch.int32), torch.empty(0, TOP_K))
    weights, routing = to(device, draw_weights(torch.float32), none)
    with launches() as counts:
        got = TRITON.experts(torch.empty(0, WIDTH, device=device), routing, weights, SILU)
    assert got.shape == (0, WIDTH)
    assert not counts


def _ids(name: str) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return {
        "one pair": torch.tensor([[8]]),
        "all of one expert": torch.full((40, 2), 3),
        "each of another": torch.arange(EXPERTS)[:, None],
        "several chunks": torch.randint(EXPERTS, (CHUNK // 2 + 9, 4), generator=generator),
    }[name].int()


@pytest.mark.parametrize(
    "name", ["one pair", "all of one expert", "each of another", "several chunks"]
)
def test_blocks_contain_every_pair_once_and_by_expert(name: str, device: torch.device) -> None:
    ids = _ids(name)
    pairs, experts, count = (part.cpu() for part in sort_pairs(ids.to(device), EXPERTS, 16))
    used, total = int(count), ids.numel()
    assert used <= most_blocks(total, EXPERTS, 16) == len(pairs) == len(experts)
    by_expert = [torch.nonzero(ids.flatten() == expert)[:, 0] for expert in range(EXPERTS)]
    wanted = [
        (number, part)
        for number, own in enumerate(by_expert)
        for part in own.split(16)
        if len(part)
    ]
    assert used == len(wanted)
    for block, (expert, part) in enumerate(wanted):
        assert int(experts[block]) == expert
        assert pairs[block].tolist() == [*part.tolist(), *[total] * (16 - len(part))]


@pytest.mark.parametrize("pairs", [1, 5, 9, 10, 25, 26, 333])
def test_there_is_room_for_the_worst_routing_and_no_more(pairs: int) -> None:
    """A pair for each expert, and all others for one of them."""
    busy = min(pairs, EXPERTS)
    filled = busy - 1 + -(-(pairs - busy + 1) // 16)
    assert most_blocks(pairs, EXPERTS, 16) == filled


@pytest.mark.parametrize("part", ["gate_up", "down"])
def test_weights_that_are_not_contiguous_are_named(part: str) -> None:
    weights, routing = draw_weights(torch.float32), draw_routing(2)
    assert isinstance(weights.gate_up, Tensor)
    assert isinstance(weights.down, Tensor)
    turned = {
        "gate_up": weights.gate_up.new_zeros(EXPERTS, WIDTH, 2 * INNER).mT,
        "down": weights.down.new_zeros(EXPERTS, INNER, WIDTH).mT,
    }[part]
    given = (
        ExpertWeights(turned, weights.down)
        if part == "gate_up"
        else ExpertWeights(weights.gate_up, turned)
    )
    with pytest.raises(ValueError, match="must be contiguous"):
        TRITON.experts(torch.zeros(2, WIDTH), routing, given, SILU)


@pytest.mark.parametrize("form", [*FORMS, *FLOAT4])
def test_experts_of_integers_equal_the_reference(form: str, device: torch.device) -> None:
    weights, routing = draw_weights(torch.float32), draw_routing(5)
    assert isinstance(weights.gate_up, Tensor)
    assert isinstance(weights.down, Tensor)
    parts = draw_quantized(form, weights.gate_up), draw_quantized(form, weights.down)
    there = ExpertWeights(parts[0].on(device), parts[1].on(device))
    chosen = ExpertRouting(*(part.to(device) for part in routing))
    x = normal(5, WIDTH).to(device)
    got = TRITON.experts(x, chosen, there, SILU)
    wanted = TORCH.experts(x, chosen, there, SILU)
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-3)


def float4_weights(
    form: str, dtype: torch.dtype, device: torch.device, *, has_bias: bool = True
) -> tuple[ExpertWeights, ExpertWeights]:
    """Quantize a mixture; return it on the device, and plain with the same numbers."""
    drawn = draw_weights(dtype, has_bias=has_bias)
    assert isinstance(drawn.gate_up, Tensor)
    assert isinstance(drawn.down, Tensor)
    scale = torch.arange(1, EXPERTS + 1).view(-1, 1, 1)  # no expert has the factors of another
    parts = [draw_quantized(form, (one * scale).to(dtype)) for one in (drawn.gate_up, drawn.down)]
    biases = drawn.gate_up_bias, drawn.down_bias
    there = [None if one is None else one.to(device) for one in biases]
    return (
        ExpertWeights(parts[0].on(device), parts[1].on(device), *there),
        ExpertWeights(parts[0].plain(), parts[1].plain(), *biases),
    )


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("kind", ["silu", "swigluoai"])
@pytest.mark.parametrize("form", FLOAT4)
def test_rows_of_float4_are_sums_over_their_experts(
    form: str, kind: GateKind, dtype: torch.dtype, device: torch.device
) -> None:
    weights, plain = float4_weights(form, dtype, device)
    routing, activation = draw_routing(7), GatedActivation(kind, limit=1.5)
    x = normal(7, WIDTH).to(dtype)
    wanted = computed_one_by_one(x, routing, plain, activation)
    chosen = ExpertRouting(*(part.to(device) for part in routing))
    got = TRITON.experts(x.to(device), chosen, weights, activation).double().cpu()
    error = (got - wanted).abs().amax() / wanted.abs().amax()
    assert error <= {torch.float32: 1e-6, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}[dtype]


@pytest.mark.usefixtures("row_independent_dot")
@pytest.mark.parametrize("form", FLOAT4)
def test_rows_of_float4_experts_have_the_same_bits(form: str, device: torch.device) -> None:
    weights, _ = float4_weights(form, torch.bfloat16, device, has_bias=False)
    routing = ExpertRouting(*(part.to(device) for part in draw_routing(64)))
    x = normal(64, WIDTH).to(device, torch.bfloat16)
    whole = TRITON.experts(x, routing, weights, SILU)
    for rows in (1, 2, 8, 17, 63):
        for first in (0, 64 - rows):
            some = slice(first, first + rows)
            part = ExpertRouting(routing.ids[some], routing.weights[some])
            assert torch.equal(TRITON.experts(x[some], part, weights, SILU), whole[some])
