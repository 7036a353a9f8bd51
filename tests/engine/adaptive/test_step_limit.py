"""The objective InterTokenLatency: margin, choices within the limit, and prompts."""

import math
import random
from collections.abc import Callable

import pytest

from specdecode_engine.adaptive.cost import CostModel
from specdecode_engine.adaptive.draft_rest import DraftRest
from specdecode_engine.adaptive.goodput import GoodputPolicy
from specdecode_engine.adaptive.policy import Feedback, Reason
from specdecode_engine.adaptive.step_limit import CATCH_UP_INTERVAL, StepLimit
from specdecode_engine.adaptive.table import BatchRange, RangeTable
from tests.engine.adaptive.test_goodput import (
    CANDIDATES,
    ONE_RANGE,
    Machine,
    Rounds,
    dear_s,
    dense_s,
    policy,
)

Noise = Callable[[random.Random], float]


def limited(machine: Machine, max_step_s: float) -> GoodputPolicy:
    found = policy(machine)
    found.reload(ONE_RANGE.within(max_step_s))
    return found


def reasons(rounds: Rounds) -> set[Reason]:
    return {decision.reason for decision in rounds.decisions}


@pytest.mark.parametrize(
    "noise",
    [
        lambda draw: draw.lognormvariate(0.0, 0.04),
        lambda draw: draw.lognormvariate(0.0, 0.2),
        lambda draw: draw.lognormvariate(0.3, 0.1),  # costs are 30 % too low
        lambda draw: draw.expovariate(1.0) + 0.5,
        lambda draw: 4.0 if draw.random() < 0.005 else draw.lognormvariate(0.0, 0.04),
    ],
    ids=["small", "large", "biased", "skewed", "spikes"],
)
def test_few_steps_exceed_the_margin_whatever_the_noise(noise: Noise) -> None:
    limit, draw = StepLimit(), random.Random(1)
    limit.set(1.0)
    for _ in range(5000):
        limit.observe(1.0, noise(draw))
    exceeding = 0
    for _ in range(20_000):
        ratio = noise(draw)
        exceeding += limit.expected_s * ratio > limit.max_step_s
        limit.observe(1.0, ratio)
    assert 0.004 < exceeding / 20_000 < 0.01


@pytest.mark.parametrize("gap_s", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_impossible_gaps_change_no_limit(gap_s: float) -> None:
    limit = StepLimit()
    limit.set(1.0)
    before = limit.expected_s
    limit.observe(1.0, gap_s)
    assert limit.expected_s == before < 1.0
    limit.set(math.inf)
    limit.observe(1.0, 2.0)
    assert limit.expected_s == math.inf


@pytest.mark.parametrize("rate", [0.9, 0.05])
@pytest.mark.parametrize("size", [1, 64])
@pytest.mark.parametrize("machine", [dense_s, dear_s])
@pytest.mark.parametrize("factor", [1.3, 1.6, 2.5, 5.0])
def test_gaps_are_within_the_limit_and_the_choice_is_the_best_of_those(
    machine: Machine, size: int, rate: float, factor: float
) -> None:
    max_step_s = factor * machine(size, 0)
    rounds = Rounds(limited(machine, max_step_s), machine)
    rounds.run(2000, size, rate)
    assert Reason.UNREACHABLE not in reasons(rounds)
    within = sum(gap_s <= max_step_s for gap_s in rounds.gaps_s) / len(rounds.gaps_s)
    assert within >= 0.99

    def tokens_per_second(steps: int) -> float:
        return sum(rate**position for position in range(steps + 1)) / machine(size, steps)

    late = range(1000, 2000)
    seconds = sum(rounds.seconds[step] for step in late)
    tokens = sum(
        tokens_per_second(steps) * machine(size, steps)
        for steps in (rounds.decisions[step].num_steps for step in late)
    )
    allowed = [steps for steps in CANDIDATES if 1.15 * machine(size, steps) <= max_step_s]
    assert tokens / seconds >= 0.97 * max(map(tokens_per_second, allowed))


def test_where_no_step_is_short_enough_the_fastest_is_chosen_and_counted() -> None:
    rounds = Rounds(limited(dear_s, 0.9 * dear_s(8, 0)), dear_s)
    assert set(rounds.run(300, 8, 0.95)) == {0}
    assert reasons(rounds) == {Reason.UNREACHABLE}
    assert rounds.depth.prefill_room_s(8, 0) == math.inf


def test_rest_at_no_draft_steps_is_counted_too() -> None:
    rounds = Rounds(limited(dear_s, math.inf), dear_s)
    rounds.run(300, 64, 0.1)
    rounds.depth.reload(ONE_RANGE.within(0.5 * dear_s(64, 0)))
    first = len(rounds.decisions)
    rounds.run(100, 64, 0.1)
    assert {decision.reason for decision in rounds.decisions[first:]} == {Reason.UNREACHABLE}


def test_without_a_candidate_without_a_draft_the_smallest_is_the_fastest() -> None:
    table = RangeTable([BatchRange(1, (2, 3, 5))], max_step_s=0.5 * dear_s(8, 2))
    depth = GoodputPolicy(table, policy(dear_s).cost, 3)
    decision = depth.decide(8, 0)
    assert (decision.num_steps, decision.reason) == (2, Reason.UNREACHABLE)


def test_probes_keep_to_the_limit() -> None:
    """A draft that became useless is probed with one draft step; the limit may forbid that."""
    for max_step_s, allowed in ((1.3 * dear_s(8, 1), {0, 1}), (0.99 * dear_s(8, 1), {0})):
        rounds = Rounds(limited(dear_s, max_step_s), dear_s)
        rounds.run(500, 8, 0.02)
        assert set(rounds.run(1500, 8, 0.02)) <= allowed
        assert (Reason.PROBE in reasons(rounds)) == (1 in allowed)


def test_prompts_in_a_step_take_their_time_from_the_draft_of_that_step_alone() -> None:
    max_step_s = 1.3 * dense_s(4, 7)
    rounds = Rounds(limited(dense_s, max_step_s), dense_s)
    assert rounds.run(400, 4, 0.9)[-1] == 7
    depth, room_s = rounds.depth, rounds.depth.prefill_room_s(4, 0)
    assert 0 < room_s < max_step_s - dense_s(4, 0)
    assert depth.decide(4, 0).num_steps == 7
    shared = depth.decide(4, 0, 0.999 * room_s)
    assert (shared.num_steps, shared.reason) == (0, Reason.LATENCY)
    between = depth.decide(4, 0, 0.8 * room_s)
    assert 0 < between.num_steps < 7
    assert depth.decide(4, 0, 1.01 * room_s).reason is Reason.LATENCY
    assert depth.decide(4, 0, max_step_s).reason is Reason.LATENCY, "plain decoding is within it"
    assert depth.decide(4, 0).num_steps == 7


def test_prompts_that_take_longer_than_expected_get_less_room() -> None:
    max_step_s = 2.0 * dense_s(4, 0)
    depth, draw = limited(dense_s, max_step_s), random.Random(5)
    first_room_s, too_long = depth.prefill_room_s(4, 0), list[bool]()
    for number in range(4000):
        prefill_s = depth.prefill_room_s(4, 0) if number % 4 == 0 else 0.0
        decision = depth.decide(4, 0, prefill_s)
        seconds = dense_s(4, decision.num_steps) + 1.4 * prefill_s
        gap_s = seconds * draw.lognormvariate(0.0, 0.03)
        depth.observe(Feedback(decision, 4, 0, (), gap_s, not prefill_s, gap_s=gap_s))
        too_long += [gap_s > max_step_s] if prefill_s else []
    assert depth.prefill_room_s(4, 0) < 0.8 * first_room_s
    assert sum(too_long) / len(too_long) < 0.03
    assert sum(too_long[len(too_long) // 2 :]) / (len(too_long) / 2) < 0.015


def test_the_limit_is_exchanged_while_running() -> None:
    rounds = Rounds(limited(dense_s, math.inf), dense_s)
    assert rounds.run(400, 4, 0.9)[-1] == 7
    rounds.depth.reload(ONE_RANGE.within(1.02 * dense_s(4, 3)))
    assert set(rounds.run(200, 4, 0.9)) <= {0, 1, 2, 3}
    rounds.depth.reload(ONE_RANGE)
    assert rounds.run(400, 4, 0.9)[-1] == 7


def test_before_a_step_was_measured_the_fastest_runs_and_nothing_is_counted() -> None:
    depth = GoodputPolicy(ONE_RANGE.within(0.02), CostModel(), 3)
    assert depth.prefill_room_s(4, 0) == math.inf
    decision = depth.decide(4, 0)
    assert (decision.num_steps, decision.reason) == (0, Reason.START)
    depth.observe(Feedback(decision, 4, 0, (), dense_s(4, 0), gap_s=dense_s(4, 0)))
    rounds = Rounds(depth, dense_s)
    assert max(rounds.run(400, 4, 0.9)) > 0
    assert Reason.UNREACHABLE not in reasons(rounds)


def test_a_draft_that_has_to_catch_up_exceeds_the_limit_seldom() -> None:
    """Prompts forbid a draft in every fourth step; catching up takes longer than the limit."""
    max_step_s = 1.25 * dense_s(8, 3)
    depth, draw = limited(dense_s, max_step_s), random.Random(3)
    missed, gaps_s, drafts = 0, list[float](), 0
    for number in range(8 * CATCH_UP_INTERVAL):
        prefill_s = 0.9 * depth.prefill_room_s(8, 0) if number % 4 == 0 else 0.0
        decision = depth.decide(8, 0, prefill_s)
        steps = decision.num_steps
        step_s = dense_s(8, steps) + (2e-3 * missed if steps else 0.0)
        gap_s = (step_s + prefill_s) * draw.lognormvariate(0.0, 0.02)
        missed = 0 if steps else missed + 1
        drafts += steps > 0
        gaps_s.append(gap_s)
        accepted = (min(2, steps),) * 8
        alone = number % 4 != 0
        depth.observe(Feedback(decision, 8, 0, accepted, gap_s, alone, gap_s=gap_s))
    assert drafts > 0
    assert sum(gap_s > max_step_s for gap_s in gaps_s) / len(gaps_s) < 0.01


def test_after_a_long_rest_the_draft_returns_though_it_has_to_catch_up() -> None:
    """The grant to exceed the limit once is not lost in the steps that precede the draft."""
    max_step_s = 1.5 * dense_s(4, 3)
    depth, rest = limited(dense_s, max_step_s), DraftRest(kept=64)
    drafts, missed = [0, 0], 0
    for number in range(1000 + 4 * CATCH_UP_INTERVAL):
        is_good = number >= 1000
        decision = rest.decide(depth, 4, 0, 0.0)
        steps = decision.num_steps
        gap_s = dense_s(4, steps) + (1e-3 * min(missed, 64) if steps else 0.0)
        missed = 0 if steps else missed + 1
        drafts[is_good] += steps > 0
        accepted = (steps if is_good else 0,) * 4
        depth.observe(Feedback(decision, 4, 0, accepted, gap_s, gap_s=gap_s))
    assert drafts[0] < 100
    assert drafts[1] > 2 * CATCH_UP_INTERVAL
