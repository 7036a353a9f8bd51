"""Forwards of a step by its shape, and which steps share them."""

from functools import partial

from specdecode_api.speculation import Algorithm
from specdecode_engine.adaptive.ema import EmaPolicy
from specdecode_engine.adaptive.policy import StaticPolicy
from specdecode_engine.adaptive.table import BatchRange, RangeTable
from specdecode_engine.batch.shapes import (
    DraftForwards,
    DraftShape,
    ForwardKind,
    ForwardShape,
    StepSizes,
    forwards_of,
    token_forwards,
)
from specdecode_engine.graphs.plan import GraphKey, GraphSpace
from specdecode_engine.startup.draft_methods.registry import METHODS


def up_to(window: int) -> DraftForwards:
    return partial(token_forwards, window=window)


def nothing(shape: DraftShape, batch_size: int) -> tuple[ForwardShape, ...]:
    return ()


def test_a_chain() -> None:
    assert forwards_of(DraftShape.chain(3), 8, up_to(6)) == (
        ForwardShape(ForwardKind.CATCH_UP, 8, 6),
        ForwardShape(ForwardKind.VERIFY, 8, 4),
        ForwardShape(ForwardKind.CATCH_UP, 8, 4),
        ForwardShape(ForwardKind.DRAFT_STEP, 8, 1, 1),
        ForwardShape(ForwardKind.DRAFT_STEP, 8, 1, 0),
    )


def test_a_tree_sees_the_scratch_of_the_steps_before() -> None:
    forwards = forwards_of(DraftShape(3, 4, 10), 2, up_to(4))
    assert forwards == (
        ForwardShape(ForwardKind.VERIFY, 2, 10, seen=10),
        ForwardShape(ForwardKind.DRAFT_STEP, 2, 4, 4, 8),
        ForwardShape(ForwardKind.DRAFT_STEP, 2, 4, 0, 4),
        ForwardShape(ForwardKind.CATCH_UP, 2, 4),
    )
    assert [one.total_rows for one in forwards] == [20, 8, 8, 8]
    assert [one.output_rows for one in forwards] == [20, 8, 8, 2]


def test_without_a_draft_or_draft_steps_only_the_target_runs() -> None:
    only = (ForwardShape(ForwardKind.VERIFY, 3, 1),)
    assert forwards_of(DraftShape.chain(0), 3, up_to(5)) == only
    assert forwards_of(DraftShape.of(0, 4), 3, up_to(5)) == only
    assert forwards_of(DraftShape.chain(0), 3, nothing) == only


def test_num_steps_share_the_draft_steps_that_both_take_and_the_widest_catch_up() -> None:
    three, seven = (set(forwards_of(DraftShape.chain(steps), 4, up_to(8))) for steps in (3, 7))
    assert three & seven == {
        ForwardShape(ForwardKind.CATCH_UP, 4, 8),
        ForwardShape(ForwardKind.DRAFT_STEP, 4, 1, 0),
        ForwardShape(ForwardKind.DRAFT_STEP, 4, 1, 1),
    }


TABLE = RangeTable([BatchRange(1, (1, 3, 5)), BatchRange(3, (0, 1))])
SPACE = GraphSpace({n: DraftShape.chain(n) for n in (0, 1, 3, 5)}, (1, 2, 4), 4, up_to(6))


def test_a_static_policy_reaches_one_num_steps_a_range() -> None:
    pairs = SPACE.plan(StaticPolicy(3, TABLE)).pairs
    assert set(pairs) == {GraphKey(3, 1), GraphKey(3, 2), GraphKey(1, 4)}


def test_an_adaptive_policy_reaches_every_candidate_whatever_the_num_steps_at_start() -> None:
    plans = [SPACE.plan(EmaPolicy(TABLE, start, SPACE.sizes)) for start in (0, 1, 3, 5)]
    expected = {GraphKey(n, size) for n in (1, 3, 5) for size in (1, 2)} | {
        GraphKey(0, 4),
        GraphKey(1, 4),
    }
    assert all(set(plan.pairs) == expected for plan in plans)


def test_pairs_are_ordered_by_their_largest_forward() -> None:
    pairs = SPACE.plan(EmaPolicy(TABLE, 1, SPACE.sizes)).pairs
    rows = [forwards[0].total_rows for forwards in pairs.values()]
    assert rows == sorted(rows, reverse=True)
    for forwards in pairs.values():
        assert forwards[0].total_rows == max(one.total_rows for one in forwards)


SIZES = StepSizes.over({7: DraftShape.chain(7)}, is_overlapped=False)
DFLASH = partial(METHODS[Algorithm.DFLASH].forwards, SIZES)


def test_a_draft_of_blocks_has_one_forward_whatever_is_verified_of_it() -> None:
    shapes = [DraftShape.of(steps, topk) for steps, topk in ((1, 1), (3, 1), (7, 1), (3, 2))]
    forwards = [forwards_of(shape, 4, DFLASH) for shape in shapes]
    block = ForwardShape(ForwardKind.BLOCK, 4, 7)
    assert all({one.kind for one in each} == {ForwardKind.VERIFY, block.kind} for each in forwards)
    assert all(block in each for each in forwards)
    assert block.output_rows == 28
    only = (ForwardShape(ForwardKind.VERIFY, 4, 1),)
    assert forwards_of(DraftShape.chain(0), 4, DFLASH) == only
