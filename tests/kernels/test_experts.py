"""The experts of a mixture: against plain arithmetic, and a row's bits in any batch."""

import pytest
import torch
from torch import Tensor

from specdecode_kernels import (
    TORCH,
    ExpertRouting,
    ExpertWeights,
    GatedActivation,
    PackedWeight,
)
from specdecode_kernels.mixture import GateKind
from specdecode_kernels.testing import backend_of, checked
from specdecode_kernels.torch.experts import combine
from specdecode_kernels.torch.experts import experts as reference
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
from tests.row_batches import ROWS, assert_rows_are_independent

CPU = torch.device("cpu")
META = torch.device("meta")
TYPES = (torch.float32, torch.bfloat16)
IN_C = {dtype: checked(backend_of("cpu", CPU, dtype)) for dtype in TYPES}
PLAIN = checked(TORCH)


def pack(weights: ExpertWeights) -> ExpertWeights:
    gate_up, down = weights.gate_up, weights.down
    assert isinstance(gate_up, Tensor)
    assert isinstance(down, Tensor)
    pack_weight = IN_C[gate_up.dtype].pack_weight
    assert pack_weight is not None
    return ExpertWeights(
        pack_weight(gate_up), pack_weight(down), weights.gate_up_bias, weights.down_bias
    )


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_sums_over_their_experts(kind: GateKind, dtype: torch.dtype) -> None:
    weights, routing = draw_weights(dtype), draw_routing(12)
    x, activation = normal(12, WIDTH).to(dtype), GatedActivation(kind, limit=1.5)
    wanted = computed_one_by_one(x, routing, weights, activation)
    tolerance = 1e-5 if dtype == torch.float32 else 0.1
    for ops, given in ((PLAIN, weights), (IN_C[dtype], pack(weights)), (IN_C[dtype], weights)):
        got = ops.experts(x, routing, given, activation)
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), wanted, atol=tolerance, rtol=0.01)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_rows_have_the_same_bits_alone_and_in_batches(dtype: torch.dtype) -> None:
    ops, weights = IN_C[dtype], pack(draw_weights(dtype))
    x, routing = normal(ROWS, WIDTH).to(dtype), draw_routing(ROWS)
    activation = GatedActivation("swigluoai", limit=1.5)

    def compute(first: int, last: int) -> Tensor:
        part = ExpertRouting(routing.ids[first:last], routing.weights[first:last])
        return ops.experts(x[first:last], part, weights, activation)

    alone = torch.cat([compute(row, row + 1) for row in range(ROWS)])
    for size in range(2, ROWS + 1):
        first = size * 5 % (ROWS - size + 1)
        assert torch.equal(compute(first, first + size), alone[first : first + size]), size


@pytest.mark.parametrize(
    ("experts", "has_bias"),
    [(EXPERTS, True), (EXPERTS, False), (40, True)],
    ids=["biases", "no biases", "experts that two threads do not share"],
)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_row_has_the_same_bits_at_every_place_on_any_number_of_threads(
    dtype: torch.dtype, experts: int, has_bias: bool
) -> None:
    ops = IN_C[dtype]
    weights = pack(draw_weights(dtype, has_bias=has_bias, experts=experts))
    x, routing = normal(ROWS, WIDTH).to(dtype), draw_routing(ROWS, experts=experts)
    activation = GatedActivation("swigluoai", limit=1.5)
    assert_rows_are_independent(
        lambda rows: ops.experts(
            x[rows], ExpertRouting(*(part[rows] for part in routing)), weights, activation
        )
    )


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_packed_experts_come_back(dtype: torch.dtype) -> None:
    weights = draw_weights(dtype)
    packed = pack(weights)
    for plain, blocks in ((weights.gate_up, packed.gate_up), (weights.down, packed.down)):
        assert isinstance(blocks, PackedWeight)
        assert isinstance(plain, Tensor)
        assert blocks.shape == plain.shape
        assert torch.equal(blocks.plain(), plain)


def test_one_kernel_in_c_is_launched_for_all_experts() -> None:
    weights = pack(draw_weights(torch.float32))
    with launches() as counts:
        ops = backend_of("cpu", CPU)
        ops.experts(normal(5, WIDTH), draw_routing(5), weights, GatedActivation("silu"))
    assert counts == {"experts": 1}


def test_no_rows_and_an_expert_that_is_chosen_twice() -> None:
    weights = draw_weights(torch.float32)
    for ops, given in ((PLAIN, weights), (IN_C[torch.float32], pack(weights))):
        none = ExpertRouting(torch.empty(0, TOP_K, dtype=torch.int32), torch.empty(0, TOP_K))
        empty = ops.experts(torch.empty(0, WIDTH), none, given, GatedActivation("silu"))
        assert empty.shape == (0, WIDTH)
        twice = ExpertRouting(torch.tensor([[4, 4]], dtype=torch.int32), torch.tensor([[0.25, 1]]))
        once = ExpertRouting(torch.tensor([[4]], dtype=torch.int32), torch.tensor([[1.25]]))
        x, activation = normal(1, WIDTH), GatedActivation("silu")
        both = [ops.experts(x, routing, given, activation) for routing in (twice, once)]
        torch.testing.assert_close(*both)


def test_shapes_of_the_reference_do_not_depend_on_ids_outside_of_a_cpu() -> None:
    """On meta nothing can be read, as in a CUDA graph nothing may be waited for."""
    weights = draw_weights(torch.bfloat16)
    gate_up, down = weights.gate_up, weights.down
    assert isinstance(gate_up, Tensor)
    assert isinstance(down, Tensor)
    moved = ExpertWeights(gate_up.to(META), down.to(META))
    routing = ExpertRouting(*(part.to(META) for part in draw_routing(5)))
    x = normal(5, WIDTH).to(META, torch.bfloat16)
    assert reference(x, routing, moved, GatedActivation("silu")).shape == (5, WIDTH)


def test_outputs_are_added_in_order_and_rounded_once() -> None:
    outputs = torch.tensor([[[1.0], [2.0**-8], [2.0**-8]]], dtype=torch.bfloat16)
    assert combine(outputs, torch.ones(1, 3)).item() == 1 + 2.0**-7


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"hidden": torch.zeros(2, WIDTH + 1)}, r"rows \[2, 91\]"),
        ({"hidden": torch.zeros(2, WIDTH).half()}, "torch.float16 must be"),
        ({"ids": torch.zeros(2, TOP_K)}, "must be i32 and f32"),
        ({"ids": torch.zeros(3, TOP_K, dtype=torch.int32)}, r"must both be \[2, top_k\]"),
        ({"gate_up": torch.zeros(EXPERTS, INNER, WIDTH)}, "must be .experts, 2 . inner, hidden."),
        ({"bias": torch.zeros(EXPERTS, INNER)}, r"a bias \[9, 45\] must be \[9, 90\]"),
    ],
)
def test_arguments_that_do_not_fit_are_named(change: dict[str, Tensor], error: str) -> None:
    weights, routing = draw_weights(torch.float32), draw_routing(2)
    given = ExpertWeights(
        change.get("gate_up", weights.gate_up), weights.down, change.get("bias"), weights.down_bias
    )
    chosen = ExpertRouting(change.get("ids", routing.ids), routing.weights)
    hidden = change.get("hidden", torch.zeros(2, WIDTH))
    with pytest.raises(ValueError, match=error):
        PLAIN.experts(hidden, chosen, given, GatedActivation("silu"))
