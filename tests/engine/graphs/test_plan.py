"""Which pairs fit the bytes of a budget, and how many graphs pruning saves."""

from collections.abc import Iterable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.cpu.graphs.pruning import LLAMA_8B, measure
from bench.cpu.graphs.tables import TABLES, NamedTable
from specdecode_engine.adaptive.ema import EmaPolicy
from specdecode_engine.adaptive.table import BatchRange, RangeTable
from specdecode_engine.batch.shapes import DraftShape, ForwardShape, forwards_of, token_forwards
from specdecode_engine.graphs.plan import GraphKey, GraphPlan, GraphSpace

STEPS, SIZES = (0, 1, 3, 7), (1, 2, 4, 8)
TABLE = RangeTable([BatchRange(1, STEPS)])
DRAFTING = partial(token_forwards, window=8)
SPACE = GraphSpace({steps: DraftShape.chain(steps) for steps in STEPS}, SIZES, 8, DRAFTING)
PLAN = SPACE.plan(EmaPolicy(TABLE, 0, SIZES))


def rows_of(shapes: Iterable[ForwardShape]) -> int:
    return max((one.total_rows for one in shapes), default=0)


def test_a_plan_without_limits_keeps_every_pair() -> None:
    plan, dropped = PLAN.fit(rows_of, 64)
    assert (plan, dropped) == (PLAN, ())
    assert set(plan.pairs) == {GraphKey(steps, size) for steps in STEPS for size in SIZES}


@given(st.integers(0, 70))
def test_the_buffers_of_a_plan_fit_the_bytes(max_bytes: int) -> None:
    plan, dropped = PLAN.fit(rows_of, max_bytes)
    assert rows_of(plan.forwards()) <= max_bytes
    assert [one.key for one in dropped] + list(plan.pairs) == list(PLAN.pairs)


def test_the_largest_pairs_are_dropped_and_no_more() -> None:
    plan, dropped = PLAN.fit(rows_of, 16)
    assert set(plan.pairs) == {key for key, shapes in PLAN.pairs.items() if rows_of(shapes) <= 16}
    assert GraphKey(7, 8) in {one.key for one in dropped}
    assert not any(one.is_pending for one in dropped)


def test_the_reason_contains_the_pair_the_bytes_and_the_remedy() -> None:
    _, dropped = PLAN.fit(lambda shapes: rows_of(shapes) << 20, 3 << 20)
    assert str(dropped[0]) == (
        "num_steps 7 at batch size 8 runs eagerly: its buffers take 64.0 MiB and graphs.max_bytes "
        "is 3.0 MiB; raise graphs.max_bytes or lower graphs.batch_sizes"
    )


def test_without_bytes_nothing_is_planned() -> None:
    plan, dropped = PLAN.fit(LLAMA_8B.num_bytes, 0)
    assert (plan.pairs, len(dropped)) == ({}, len(PLAN.pairs))


def test_the_key_of_a_step_is_its_padded_batch() -> None:
    assert PLAN.key_of(3, 5) == GraphKey(3, 8)
    assert PLAN.key_of(9, 2) == GraphKey(9, 2)
    assert PLAN.key_of(0, 9) is None
    assert GraphPlan((), {}).key_of(0, 1) is None


def test_shared_forwards_are_counted_once() -> None:
    every = [one for forwards in PLAN.pairs.values() for one in forwards]
    assert len(PLAN.forwards()) == len(set(every)) < len(every)


def test_buffers_are_those_of_the_largest_forward_of_each_kind() -> None:
    """Bytes of an 8B model with an EAGLE-3 head at batch size 64 and 8 nodes."""
    shapes = forwards_of(DraftShape.chain(7), 64, DRAFTING)
    verify = shapes[0]
    logits = 64 * 8 * 128_256 * 4
    hidden_out = 64 * 8 * 3 * 4096 * 2
    indices = 8 * (64 + 64 + 64 * 8)
    assert LLAMA_8B.num_bytes([verify]) == logits + hidden_out + indices
    assert LLAMA_8B.num_bytes(shapes) < 1.2 * LLAMA_8B.num_bytes([verify])


@pytest.mark.parametrize("named", TABLES, ids=lambda named: named.name)
def test_pruning_saves_graphs_on_every_table(named: NamedTable) -> None:
    saving = measure(named)
    assert saving.pairs <= saving.all_pairs
    assert saving.graphs <= saving.all_graphs
    assert saving.shared_bytes <= saving.all_shared_bytes
    if len(named.entries) > 1:
        assert saving.part < 0.5


def test_ten_tables_together_take_less_than_half_of_the_graphs() -> None:
    """The figure of decision 8."""
    for topk, most in ((1, 0.4), (4, 0.4)):
        savings = [measure(named, topk) for named in TABLES]
        captured, everything = (
            sum(getattr(saving, name) for saving in savings) for name in ("graphs", "all_graphs")
        )
        assert captured < most * everything
