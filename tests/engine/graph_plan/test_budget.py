"""What a budget of bytes and seconds lets in, puts off and refuses, and the reasons it gives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphs.pruning import LLAMA_8B, measure
from graphs.tables import TABLES, NamedTable
from specdecode_engine.draft_shape import DraftShape
from specdecode_engine.graph_plan.budget import Budget, Ruling, Verdict, rule
from specdecode_engine.graph_plan.costs import GRAPH_BYTES_PER_LAYER, Cost
from specdecode_engine.graph_plan.passes import PassShape, passes_of
from specdecode_engine.graph_plan.plan import Pair

MIB = 1 << 20
PAIRS = {
    Pair(steps, size): passes_of(DraftShape.chain(steps), size, 8)
    for steps in (0, 1, 3, 7)
    for size in (1, 2, 4, 8)
}


def flat_cost(shape: PassShape) -> Cost:
    return Cost(MIB, 0.5)


def no_shared(shapes: object) -> int:
    return 0


def decide(budget: Budget, **more: object) -> dict[Pair, Ruling]:
    rulings = rule(PAIRS, flat_cost, no_shared, budget, **more)  # type: ignore[arg-type]
    return {ruling.pair: ruling for ruling in rulings}


def passes_with(rulings: dict[Pair, Ruling], *verdicts: Verdict) -> set[PassShape]:
    return {one for pair in PAIRS if rulings[pair].verdict in verdicts for one in PAIRS[pair]}


def test_without_limits_everything_is_captured_the_largest_first() -> None:
    rulings = rule(PAIRS, flat_cost, no_shared, Budget())
    rows = [max(one.total_rows for one in PAIRS[ruling.pair]) for ruling in rulings]
    assert {ruling.verdict for ruling in rulings} == {Verdict.NOW}
    assert len(rulings) == len(PAIRS)
    assert rows == sorted(rows, reverse=True)


@given(st.integers(0, 80 * MIB), st.floats(0, 40))
def test_what_is_let_in_keeps_to_the_budget(max_bytes: int, max_seconds: float) -> None:
    rulings = decide(Budget(max_bytes, max_seconds))
    assert len(passes_with(rulings, Verdict.NOW, Verdict.LAZY)) * MIB <= max_bytes
    assert len(passes_with(rulings, Verdict.NOW)) * 0.5 <= max_seconds


def test_small_batches_are_kept_when_bytes_are_short() -> None:
    rulings = decide(Budget(max_bytes=30 * MIB))
    kept = [pair for pair in PAIRS if rulings[pair].verdict is Verdict.NOW]
    refused = [pair for pair in PAIRS if rulings[pair].verdict is Verdict.REFUSED]
    assert {pair for pair in PAIRS if pair.batch_size <= 2} <= set(kept)
    assert Pair(7, 8) in refused
    reason = rulings[Pair(7, 8)].reason
    assert "depth 7 at batch size 8 needs" in reason
    assert "raise graphs.max_bytes" in reason


def test_what_takes_too_long_waits_for_its_first_use() -> None:
    rulings = decide(Budget(max_seconds=5))
    assert {ruling.verdict for ruling in rulings.values()} == {Verdict.NOW, Verdict.LAZY}
    assert rulings[Pair(7, 8)].verdict is Verdict.LAZY
    assert "captured when it is first used" in rulings[Pair(7, 8)].reason


def test_nothing_is_lazy_that_has_no_room() -> None:
    rulings = decide(Budget(max_bytes=0, max_seconds=0))
    assert {ruling.verdict for ruling in rulings.values()} == {Verdict.REFUSED}


def test_shared_passes_and_captured_ones_cost_once() -> None:
    every = {one for passes in PAIRS.values() for one in passes}
    assert len(every) < sum(map(len, PAIRS.values()))
    exact = decide(Budget(max_bytes=len(every) * MIB))
    assert {ruling.verdict for ruling in exact.values()} == {Verdict.NOW}
    spent = Cost(len(every) * MIB, 100.0)
    done = decide(Budget(max_bytes=MIB, max_seconds=1), spent=spent, captured=every)
    assert {ruling.verdict for ruling in done.values()} == {Verdict.NOW}


def test_shared_buffers_count_as_far_as_they_grow() -> None:
    def largest(shapes: object) -> int:
        return max((one.total_rows for one in shapes), default=0) * MIB  # type: ignore[attr-defined]

    rulings = rule(PAIRS, lambda shape: Cost(), largest, Budget(max_bytes=16 * MIB))
    kept = {ruling.pair for ruling in rulings if ruling.verdict is Verdict.NOW}
    assert kept == {pair for pair in PAIRS if max(o.total_rows for o in PAIRS[pair]) <= 16}


def test_a_graph_is_estimated_by_the_layers_it_runs() -> None:
    verify, step = (passes_of(DraftShape.chain(3), 4, 4)[place] for place in (0, -1))
    assert LLAMA_8B.of_pass(verify).num_bytes == 33 * GRAPH_BYTES_PER_LAYER
    assert LLAMA_8B.of_pass(step).num_bytes == 2 * GRAPH_BYTES_PER_LAYER


@pytest.mark.parametrize("named", TABLES, ids=lambda named: named.name)
def test_pruning_saves_bytes_on_every_table(named: NamedTable) -> None:
    saving = measure(named)
    assert saving.pairs <= saving.all_pairs
    assert saving.num_bytes <= saving.all_bytes
    if len(named.entries) > 1:
        assert saving.part < 0.5


def test_ten_tables_together_take_less_than_half() -> None:
    """The figure of docs/log.md."""
    for topk, most in ((1, 0.5), (4, 0.4)):
        savings = [measure(named, topk) for named in TABLES]
        captured, everything = (
            sum(getattr(saving, name) for saving in savings) for name in ("num_bytes", "all_bytes")
        )
        assert captured < most * everything
