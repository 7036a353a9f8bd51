"""Passes of a round by its shape, and which rounds share them."""

from specdecode_engine.depth.ema import EmaDepth
from specdecode_engine.depth.ranges import BatchRange, DepthTable
from specdecode_engine.depth.static import StaticDepth
from specdecode_engine.draft_shape import DraftShape
from specdecode_engine.graph_plan.passes import PassKind, PassShape, passes_of
from specdecode_engine.graph_plan.plan import GraphSpace, Pair


def test_a_chain() -> None:
    assert passes_of(DraftShape.chain(3), 8, 6) == (
        PassShape(PassKind.VERIFY, 8, 4),
        PassShape(PassKind.CATCH_UP, 8, 4),
        PassShape(PassKind.CATCH_UP, 8, 6),
        PassShape(PassKind.STEP, 8, 1, 0),
        PassShape(PassKind.STEP, 8, 1, 1),
    )


def test_a_tree_sees_the_scratch_of_the_steps_before() -> None:
    passes = passes_of(DraftShape(3, 4, 10), 2, 4)
    assert passes == (
        PassShape(PassKind.VERIFY, 2, 10, seen=10),
        PassShape(PassKind.CATCH_UP, 2, 4),
        PassShape(PassKind.STEP, 2, 4, 0, 4),
        PassShape(PassKind.STEP, 2, 4, 4, 8),
    )
    assert [one.total_rows for one in passes] == [20, 8, 8, 8]
    assert [one.output_rows for one in passes] == [20, 2, 8, 8]


def test_without_a_draft_or_at_depth_0_only_the_target_runs() -> None:
    only = (PassShape(PassKind.VERIFY, 3, 1),)
    assert passes_of(DraftShape.chain(0), 3, 5) == only
    assert passes_of(DraftShape.of(0, 4), 3, 5) == only
    assert passes_of(DraftShape.chain(0), 3, None) == only


def test_depths_share_the_steps_that_both_take_and_the_widest_catch_up() -> None:
    three, seven = (set(passes_of(DraftShape.chain(steps), 4, 8)) for steps in (3, 7))
    assert three & seven == {
        PassShape(PassKind.CATCH_UP, 4, 8),
        PassShape(PassKind.STEP, 4, 1, 0),
        PassShape(PassKind.STEP, 4, 1, 1),
    }


TABLE = DepthTable([BatchRange(1, (1, 3, 5)), BatchRange(3, (0, 1))])
SPACE = GraphSpace({n: DraftShape.chain(n) for n in (0, 1, 3, 5)}, (1, 2, 4), 4, 6)


def test_a_static_policy_reaches_one_depth_a_range() -> None:
    pairs = SPACE.plan(StaticDepth(3, TABLE)).pairs
    assert set(pairs) == {Pair(3, 1), Pair(3, 2), Pair(1, 4)}


def test_an_adaptive_policy_reaches_every_candidate_whatever_the_depth_at_start() -> None:
    plans = [SPACE.plan(EmaDepth(TABLE, start, SPACE.sizes)) for start in (0, 1, 3, 5)]
    expected = {Pair(n, size) for n in (1, 3, 5) for size in (1, 2)} | {Pair(0, 4), Pair(1, 4)}
    assert all(set(plan.pairs) == expected for plan in plans)


def test_passes_are_listed_once_the_largest_first() -> None:
    passes = SPACE.plan(EmaDepth(TABLE, 1, SPACE.sizes)).passes()
    rows = [one.total_rows for one in passes]
    assert len(set(passes)) == len(passes)
    assert rows == sorted(rows, reverse=True)
