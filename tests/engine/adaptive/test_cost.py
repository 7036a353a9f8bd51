"""Costs between, beyond and without measured points; healing in service."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode_engine.adaptive.cost import FREE_ROWS, CostModel, CostPoint, CostShape

SIZES, BUCKETS = (1, 4, 16, 64), (0, 1, 3, 7)


def true_s(batch_size: int, num_steps: int, kv_tokens: int = 0) -> float:
    """A machine: 6 ms, 21 µs a row, 0.3 ms a draft step, 40 ns of each KV token."""
    rows = batch_size * (num_steps + 1)
    return 6e-3 + 21e-6 * rows + 0.3e-3 * num_steps + 40e-9 * kv_tokens


def point(batch_size: int, num_steps: int, kv_tokens: int = 0, factor: float = 1.0) -> CostPoint:
    """What profiling measures of it."""
    seconds = factor * true_s(batch_size, num_steps, kv_tokens)
    return CostPoint(batch_size, num_steps, kv_tokens, seconds)


def measured(noise: float = 0.0, seed: int = 0) -> CostModel:
    """A model of the whole grid, each cell wrong by up to `noise`."""
    draw = random.Random(seed)
    errors = {(b, k): 1.0 + draw.uniform(-noise, noise) for b in SIZES for k in BUCKETS}
    return CostModel(
        point(b, k, b * kv, errors[b, k]) for b in SIZES for k in BUCKETS for kv in (64, 1024)
    )


@pytest.mark.parametrize(
    ("size", "steps", "kv"), [(1, 0, 0), (8, 3, 9000), (6, 2, 100), (64, 5, 0)]
)
def test_between_exact_points_it_is_exact(size: int, steps: int, kv: int) -> None:
    assert measured().seconds(size, steps, kv) == pytest.approx(true_s(size, steps, kv), rel=0.02)


@pytest.mark.parametrize(("size", "steps"), [(128, 3), (64, 10), (256, 0)])
def test_beyond_the_points_it_goes_on_by_their_shape(size: int, steps: int) -> None:
    assert measured().seconds(size, steps, 0) == pytest.approx(true_s(size, steps), rel=0.15)


def limited_s(batch_size: int, num_steps: int, verify_tokens: int) -> float:
    """The same machine, where a step verifies fewer tokens than it drafts."""
    saved = batch_size * max(num_steps - verify_tokens, 0)
    return true_s(batch_size, num_steps) - 21e-6 * saved


def test_steps_that_verify_less_than_they_draft_are_cheaper() -> None:
    whole = measured()
    limited = whole.limited(1, ())
    for size, steps in ((1, 0), (16, 1)):
        assert limited.seconds(size, steps, 0) == whole.seconds(size, steps, 0)
    assert limited.seconds(64, 7, 0) < 0.9 * whole.seconds(64, 7, 0)
    assert limited.steps(64, 7) == 0
    before = whole.seconds(64, 7, 0)
    for _ in range(60):
        limited.refine(64, 7, 0, limited_s(64, 7, 1))
    assert limited.seconds(64, 7, 0) == pytest.approx(limited_s(64, 7, 1), rel=0.03)
    assert whole.seconds(64, 7, 0) == before


def test_steps_of_trees_that_verify_some_nodes_are_cheaper_by_their_share() -> None:
    """Of 4 tokens for each draft step."""
    whole = measured()
    limited = whole.limited(4, (), drafted=lambda steps: 4 * steps)
    assert limited.seconds(16, 1, 0) == whole.seconds(16, 1, 0)
    third = whole.limited(1, ()).seconds(64, 3, 0)
    assert limited.seconds(64, 3, 0) == pytest.approx(third)


def test_measured_steps_that_verify_less_replace_the_estimate() -> None:
    points = [CostPoint(64, steps, 0, limited_s(64, steps, 2), 2) for steps in (3, 7)]
    limited = measured().limited(2, points)
    for steps in (3, 7):
        assert limited.seconds(64, steps, 0) == pytest.approx(limited_s(64, steps, 2), rel=0.05)


def test_one_point_gives_the_unit_and_a_cautious_shape_the_rest() -> None:
    model = CostModel([point(4, 0)])
    assert model.seconds(4, 0, 0) == pytest.approx(true_s(4, 0))
    assert model.seconds(4, 3, 0) > true_s(4, 3)
    assert model.seconds(64, 3, 0) > model.seconds(4, 3, 0)


def test_without_points_the_first_round_gives_the_unit() -> None:
    model = CostModel()
    before = model.seconds(4, 3, 0) / model.seconds(4, 0, 0)
    model.refine(4, 0, 0, 0.02)
    assert model.seconds(4, 0, 0) == pytest.approx(0.02, rel=0.01)
    assert model.seconds(4, 3, 0) / model.seconds(4, 0, 0) == pytest.approx(before, rel=0.01)


def test_without_points_it_learns_the_machine_from_a_few_depths() -> None:
    model, draw = CostModel(), random.Random(1)
    for _ in range(60):
        for size, steps in ((1, 0), (1, 3), (16, 3), (16, 1), (64, 0), (64, 3)):
            model.refine(size, steps, 0, true_s(size, steps) * draw.lognormvariate(0.0, 0.03))
    for size, steps in ((1, 1), (16, 5), (32, 3), (64, 1), (64, 5)):
        assert model.seconds(size, steps, 0) == pytest.approx(true_s(size, steps), rel=0.15)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 128), st.integers(0, 7), st.floats(1e-4, 1.0)), max_size=12),
    st.lists(st.tuples(st.integers(1, 128), st.integers(0, 7), st.floats(1e-4, 1.0)), max_size=6),
)
def test_deeper_is_never_cheaper_whatever_was_measured(
    points: list[tuple[int, int, float]], rounds: list[tuple[int, int, float]]
) -> None:
    model = CostModel(CostPoint(size, steps, 0, seconds) for size, steps, seconds in points)
    for size, steps, seconds in rounds:
        model.refine(size, steps, 0, seconds)
    for size in (1, 3, 17, 200):
        row = [model.seconds(size, steps, 0) for steps in range(10)]
        assert row == sorted(row)
        assert row[0] > 0.0


def test_more_requests_are_never_cheaper_even_where_measurements_are() -> None:
    model = CostModel([point(1, 3), point(8, 3, factor=0.5), point(64, 3)])
    row = [model.seconds(size, 3, 0) for size in range(1, 130)]
    assert row == sorted(row)


def test_kv_costs_what_the_points_show_and_never_less_than_nothing() -> None:
    assert measured().seconds_per_kv_token(0) == pytest.approx(40e-9, rel=0.01)
    falling = CostModel([CostPoint(1, 0, 0, 0.02), CostPoint(1, 0, 1000, 0.01)])
    assert falling.seconds_per_kv_token(0) == 0.0


def test_growing_contexts_are_followed_where_no_point_measured_their_cost() -> None:
    model, draw = CostModel([point(b, k) for b in SIZES for k in BUCKETS]), random.Random(2)
    for kv in range(0, 200_000, 400):
        model.refine(16, 3, kv, true_s(16, 3, kv) * draw.lognormvariate(0.0, 0.02))
    assert model.seconds(16, 3, 200_000) == pytest.approx(true_s(16, 3, 200_000), rel=0.1)


def test_a_spike_moves_little_and_nonsense_nothing() -> None:
    model = measured()
    for _ in range(30):
        model.refine(4, 3, 0, true_s(4, 3))
    before = model.seconds(4, 3, 0)
    model.refine(4, 3, 0, 100 * before)
    assert model.seconds(4, 3, 0) < 1.02 * before
    after = model.seconds(4, 3, 0)
    for nonsense in (0.0, -1.0, math.nan, math.inf, -math.inf):
        model.refine(4, 3, 0, nonsense)
    assert model.seconds(4, 3, 0) == after


@pytest.mark.parametrize("seed", range(3))
def test_a_wrong_table_heals_where_it_is_used(seed: int) -> None:
    model, draw = measured(0.2, seed), random.Random(seed)
    for _ in range(40):
        for steps in BUCKETS:
            seconds = true_s(16, steps, 16 * 512) * draw.lognormvariate(0.0, 0.04)
            model.refine(16, steps, 16 * 512, seconds)
    for steps in BUCKETS:
        assert model.seconds(16, steps, 16 * 512) == pytest.approx(
            true_s(16, steps, 16 * 512), rel=0.05
        )
    assert model.steps(16, 3) == 40
    assert model.steps(4, 3) == 0


def test_the_same_machine_at_half_speed_is_known_after_a_hundred_steps() -> None:
    model = measured()
    for _ in range(100):
        model.refine(4, 3, 0, 2.0 * true_s(4, 3))
    assert model.seconds(4, 3, 0) == pytest.approx(2.0 * true_s(4, 3), rel=0.05)


def test_its_cells_describe_it() -> None:
    model = measured()
    cells = model.cells()
    again = CostModel(CostPoint(cell.batch_size, steps, 0, cell.seconds) for steps, cell in cells)
    assert len(cells) == len(SIZES) * len(BUCKETS)
    assert again.seconds(8, 2, 0) == pytest.approx(model.seconds(8, 2, 0), rel=1e-6)


def test_where_attention_is_arithmetic_its_part_grows_with_the_rows() -> None:
    """2 µs per token and row, measured at 0 and 5 steps, and interpolated in between."""
    points = [
        CostPoint(1, steps, kv, 1e-3 * (1 + steps) + 2e-6 * (1 + steps) * kv)
        for steps in (0, 5)
        for kv in (16, 1016)
    ]
    model = CostModel(points)
    assert model.seconds_per_kv_token(0) == pytest.approx(2e-6)
    assert model.seconds_per_kv_token(3) == pytest.approx(8e-6)
    assert model.seconds(1, 5, 500) == pytest.approx(6e-3 + 6e-3)


def block_s(batch_size: int, num_steps: int) -> float:
    """A machine whose draft, a third of the target, computes blocks of 16 rows."""
    drafting = (2e-3 + 7e-6 * 16 * batch_size) * (num_steps > 0)
    return 6e-3 + 21e-6 * batch_size * (num_steps + 1) + drafting


def test_a_block_costs_the_same_to_draft_at_all_draft_steps_but_0() -> None:
    points = [CostPoint(b, k, 0, block_s(b, k)) for b in SIZES for k in (0, 5, 11)]
    model = CostModel(points, CostShape(drafts_blocks=True))
    for size in SIZES:
        for steps, error in ((1, 0.1), (3, 0.1), (7, 0.02), (15, 0.15)):
            assert model.seconds(size, steps, 0) == pytest.approx(block_s(size, steps), rel=error)
        saved = model.seconds(size, 1, 0) - model.seconds(size, 0, 0)
        assert saved == pytest.approx(block_s(size, 1) - block_s(size, 0), rel=0.25)


def test_without_points_a_block_costs_no_more_when_more_of_it_is_verified() -> None:
    blocks, chains = CostModel(shape=CostShape(drafts_blocks=True)), CostModel()
    verifying = 14 / FREE_ROWS
    assert blocks.seconds(1, 15, 0) - blocks.seconds(1, 1, 0) == pytest.approx(verifying)
    assert chains.seconds(1, 15, 0) - chains.seconds(1, 1, 0) > 3 * verifying
    assert blocks.seconds(1, 1, 0) - blocks.seconds(1, 0, 0) > 1 / FREE_ROWS
