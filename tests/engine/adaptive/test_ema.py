"""Policy `ema`: the sequences of the reference, computed by hand, and its published steady states.

Most entries here weigh only the newest step and decide after each, so that the average equals
the mean of the input.
"""

import math
import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode_api.speculation import Policy
from specdecode_api.table import default_table
from specdecode_engine.adaptive.ema import EmaPolicy
from specdecode_engine.adaptive.policy import Decision, Feedback, Reason
from specdecode_engine.adaptive.table import BatchRange, RangeTable
from specdecode_engine.startup.policies import range_table


def at_once(*steps: int, bound: int = 1, **fields: float) -> BatchRange:
    """An entry that decides after every step, from that step alone."""
    timing = {"ema_alpha": 1.0, "update_interval": 1, "warmup_batches": 0}
    return BatchRange(bound, steps, **(timing | fields))  # type: ignore[arg-type]


def policy_of(entry: BatchRange, num_steps: int) -> EmaPolicy:
    return EmaPolicy(RangeTable([entry]), num_steps)


def report(decision: Decision, accepted: Sequence[int]) -> Feedback:
    return Feedback(decision, max(len(accepted), 1), 0, tuple(accepted), 0.01)


def feed(policy: EmaPolicy, accepted: Sequence[int], batch_size: int = 1) -> int:
    """Run one step; return the `num_steps` of the next."""
    policy.observe(report(policy.decide(batch_size, 0), accepted))
    return policy.decide(batch_size, 0).num_steps


def mean_of(mean: float) -> list[int]:
    """A thousand requests whose mean is `mean` to three places."""
    whole = math.floor(mean)
    more = round((mean - whole) * 1000)
    return [whole + 1] * more + [whole] * (1000 - more)


# Rises above c − 0.5; falls at or below the next candidate − 0.5 − 0.25.
THRESHOLDS = [
    *((1, (0, 1), 1), (1, (1, 1, 0), 3)),
    *((3, (2, 3), 3), (3, (3, 3, 2), 5), (3, (1, 0, 0), 3), (3, (1, 0, 0, 0), 1)),
    *((5, (4, 5), 5), (5, (5, 5, 4), 7), (5, (2, 2, 3), 5), (5, (2, 2, 2, 3), 3)),
    *((7, (7, 7), 7), (7, (4, 4, 5), 7), (7, (4, 4, 4, 5), 5)),
]


@pytest.mark.parametrize(("start", "accepted", "then"), THRESHOLDS)
def test_depth_rises_above_a_threshold_and_falls_at_one(start, accepted, then) -> None:
    policy = policy_of(at_once(1, 3, 5, 7), start)
    assert feed(policy, accepted) == then
    reason = Reason.KEEP if then == start else Reason.RISE if then > start else Reason.FALL
    assert policy.states()[0].reason is reason


def test_without_a_band_the_depth_above_zero_is_left_either_way() -> None:
    for accepted, then in [((0, 1), 0), ((1, 1, 0), 3)]:
        assert feed(policy_of(at_once(0, 1, 3, down_hysteresis=0.0), 1), accepted) == then
    # Half of the requests accepted is exactly where it falls to zero.
    assert feed(policy_of(at_once(0, 1, down_hysteresis=0.25), 1), (1, 1, 1, 0)) == 0
    assert feed(policy_of(at_once(0, 1, down_hysteresis=0.25), 1), (1, 1, 1, 1, 0)) == 1


def test_one_decision_may_pass_several_candidates() -> None:
    assert feed(policy_of(at_once(1, 3, 5, 7), 7), (0,)) == 1
    assert feed(policy_of(at_once(1, 3, 5, 7), 7), (2,)) == 3
    rising = policy_of(at_once(1, 2, 3, 4, up_hysteresis=-1.0), 1)
    assert feed(rising, (1,)) == 3, "1 is above −0.5 and 0.5, and not above 1.5"


def test_what_fell_does_not_rise_in_the_same_decision() -> None:
    policy = policy_of(at_once(1, 3, up_hysteresis=-1.0, down_hysteresis=1.0), 3)
    assert [feed(policy, (1,)) for _ in range(4)] == [1, 3, 1, 3]


def test_first_decision_after_warm_up_and_interval_then_every_interval() -> None:
    policy = policy_of(BatchRange(1, (1, 3, 5, 7)), 3)
    depths = [feed(policy, (3,)) for _ in range(15)]
    assert depths == [3] * 14 + [5]
    assert policy.states()[0].ema == pytest.approx(3 - 0.8**15)  # began at 3 − 1
    # 2.9648 · 0.8⁵ = 0.97 after 5 steps, 0.32 after 10, 0.10 after 15.
    depths = [feed(policy, (0,)) for _ in range(15)]
    assert depths == [5] * 4 + [3] * 10 + [1]
    assert policy.states()[0].ema == pytest.approx((3 - 0.8**15) * 0.8**15)


def test_requests_of_a_round_count_once_by_their_mean() -> None:
    policy = policy_of(BatchRange(1, (1, 3), ema_alpha=0.5), 3)
    feed(policy, (0, 1, 2))
    assert policy.states()[0].ema == 1.5  # of 2 and 1
    feed(policy, (3,))
    assert policy.states()[0].ema == 2.25


def test_a_round_without_a_request_that_goes_on_counts_for_nothing() -> None:
    policy = policy_of(BatchRange(1, (1, 3), warmup_batches=1, update_interval=1), 3)
    before = policy.states()
    assert [feed(policy, ()) for _ in range(5)] == [3] * 5
    assert policy.states() == before
    assert feed(policy, (3,)) == 3
    assert policy.states()[0].reason is Reason.START, "the first step is still warm-up"
    feed(policy, (3,))
    assert policy.states()[0].reason is Reason.KEEP


def test_each_range_has_an_average_and_a_counter_of_its_own() -> None:
    entries = [at_once(1, 3, update_interval=2), at_once(1, 3, bound=8, update_interval=2)]
    policy = EmaPolicy(RangeTable(entries), 3)
    assert [feed(policy, (0,), 1), feed(policy, (0,), 8), feed(policy, (0,), 7)] == [3, 3, 1]
    assert [state.num_steps for state in policy.states()] == [1, 3]
    assert feed(policy, (0,), 100) == 1


def test_feedback_goes_to_the_slot_that_decided_whatever_the_batch_has_become() -> None:
    policy = EmaPolicy(RangeTable([at_once(1, 3), at_once(1, 3, bound=8)]), 3)
    policy.observe(Feedback(policy.decide(8, 0), 2, 0, (0, 0), 0.01))
    assert [state.num_steps for state in policy.states()] == [3, 1]


@pytest.mark.parametrize(
    ("steps", "num_steps", "start"),
    [((1, 3, 5, 7), 3, 3), ((1, 3, 5, 7), 2, 5), ((0, 1, 3), 7, 1), ((0, 1), 3, 1), ((0,), 3, 0)],
)
def test_a_range_without_the_depth_at_start_begins_in_its_middle(steps, num_steps, start) -> None:
    policy = policy_of(BatchRange(1, steps), num_steps)
    assert policy.decide(1, 0) == Decision(start, 1, 0, Reason.START)
    assert policy.states()[0].ema == (start - 1 if start else None)


def test_at_zero_the_average_stands_still_and_the_next_decision_probes() -> None:
    policy = policy_of(at_once(0, 1, 3, update_interval=2, ema_alpha=0.5, down_hysteresis=0.0), 1)
    assert [feed(policy, (1, 0)), feed(policy, (1, 0))] == [1, 0]
    assert policy.states()[0].ema == 0.375  # 0, then 0.25, then 0.375
    assert feed(policy, (0, 0)) == 0
    assert policy.states()[0].ema == 0.375
    assert feed(policy, (0, 0)) == 1
    state = policy.states()[0]
    assert (state.ema, state.reason) == (0.375, Reason.PROBE), "it does have a history"
    assert [feed(policy, (1,)), feed(policy, (1,))] == [1, 3], "0.375, 0.6875, 0.84375"


def test_a_first_probe_begins_neutral() -> None:
    policy = policy_of(at_once(0, 3), 0)
    assert policy.states()[0].ema is None
    assert feed(policy, (0,)) == 3
    assert (policy.states()[0].ema, policy.decide(1, 0).reason) == (2, Reason.PROBE)


def test_a_range_of_zero_alone_stays_there_for_ever() -> None:
    policy = policy_of(at_once(0), 3)
    assert {feed(policy, (0,)) for _ in range(50)} == {0}
    assert (policy.states()[0].reason, policy.states()[0].ema) == (Reason.KEEP, None)


def test_a_ceiling_lowers_and_never_holds_back_a_rise() -> None:
    """The reference's published case: mean 2.6, ceiling_coeff 1, 7 and 3 by turns for ever."""
    policy = policy_of(at_once(1, 3, 7, ceiling_coeff=1.0), 7)
    seen = []
    for _ in range(6):
        depth = feed(policy, (3, 3, 3, 2, 2))
        seen.append((depth, policy.states()[0].reason))
    assert seen == [(3, Reason.CEILING), (7, Reason.RISE)] * 3


def test_a_ceiling_lowers_further_than_the_thresholds_did() -> None:
    # 2.5 falls from 7 to 5 and no further, the ceiling is 3.
    policy = policy_of(at_once(1, 3, 5, 7, ceiling_coeff=1.0), 7)
    assert feed(policy, (2, 3)) == 3
    assert policy.states()[0].reason is Reason.CEILING
    never_falls = at_once(0, 1, 3, ceiling_coeff=0.5, down_hysteresis=-1.0)
    assert feed(policy_of(never_falls, 3), (0,)) == 1, "a ceiling is at least 1"
    assert feed(policy_of(at_once(1, 3, ceiling_coeff=1.5), 3), (1, 2)) == 3, "1.5 · 1.5 is 3 up"


DEFAULT = range_table(default_table(Policy.EMA), Policy.EMA)


def test_a_batch_is_routed_by_the_size_it_is_padded_to() -> None:
    assert DEFAULT is not None
    policy = EmaPolicy(DEFAULT, 3, captured=(16, 4, 32, 8))
    sizes = (1, 4, 5, 8, 9, 16, 17, 32, 33, 63, 64, 1000)
    assert [policy.decide(size, 0).range_start for size in sizes] == [
        *(1, 1, 8, 8, 8, 8, 32, 32),
        *(32, 32, 64, 64),
    ]
    plain = EmaPolicy(DEFAULT, 3)
    assert [plain.decide(size, 0).range_start for size in (5, 7, 8, 31, 32)] == [1, 1, 8, 8, 32]
    assert EmaPolicy(RangeTable([at_once(1, bound=4)]), 1).decide(1, 0).range_start == 4


def test_each_depth_is_captured_for_the_sizes_that_can_choose_it() -> None:
    assert DEFAULT is not None
    captured = (4, 8, 16, 32)
    routing = EmaPolicy(DEFAULT, 3, captured).routing
    reached = {
        steps: [
            size
            for size in captured
            if any(steps in entry.candidate_steps for entry in routing.reachable(DEFAULT, size))
        ]
        for steps in DEFAULT.candidates()
    }
    assert reached == {0: [8, 16, 32], 1: [4, 8, 16, 32], 3: [4, 8, 16], 5: [4], 7: [4]}


def test_deciding_changes_nothing_but_the_number() -> None:
    policy = policy_of(at_once(1, 3), 3)
    before = policy.states()
    decisions = [policy.decide(1, size) for size in range(50)]
    assert policy.states() == before
    assert [decision.sequence for decision in decisions] == list(range(50))


def test_a_result_of_a_depth_that_was_left_is_dropped() -> None:
    """With overlap, a step is launched before the result of the previous one is counted."""
    policy = policy_of(at_once(0, 3, update_interval=2), 0)
    feed(policy, (0,))
    late = policy.decide(1, 0)
    feed(policy, (0,))
    assert (late.num_steps, policy.decide(1, 0).num_steps) == (0, 3)
    before = policy.states()
    policy.observe(report(late, (0,)))
    assert policy.states() == before, "zeros at depth 0 must not count as misses of depth 3"
    feed(policy, (0,))
    assert policy.states()[0].num_steps == 3, "the late one was not counted either"


def test_a_result_of_an_unknown_range_is_dropped() -> None:
    policy = policy_of(at_once(1, 3), 3)
    before = policy.states()
    policy.observe(report(Decision(3, 2, 0, Reason.START), (0,)))
    assert policy.states() == before


def test_a_reload_keeps_what_did_not_change_and_drops_what_is_under_way() -> None:
    kept, changed = at_once(1, 3), at_once(1, 3, bound=8)
    policy = EmaPolicy(RangeTable([kept, changed]), 3)
    feed(policy, (1, 0), 1)
    feed(policy, (0,), 8)
    under_way = policy.decide(1, 0)
    table = RangeTable([kept, at_once(1, 3, 5, bound=8), at_once(0, bound=64)])
    policy.reload(table)
    assert policy.table is table
    first, second, third = policy.states()
    assert (first.ema, first.reason) == (0.5, Reason.KEEP)
    assert (second.num_steps, second.ema, second.reason) == (3, 2, Reason.START)
    assert (third.range_start, third.num_steps) == (64, 0)
    policy.observe(report(under_way, (3,)))
    assert policy.states()[0] == first
    feed(policy, (3,), 1)
    assert policy.states()[0].ema == 3, "what was decided after the reload counts"


def test_a_range_that_a_reload_took_away_is_forgotten() -> None:
    policy = EmaPolicy(RangeTable([at_once(1, 3), at_once(1, 3, bound=8)]), 3)
    gone = policy.decide(8, 0)
    policy.reload(RangeTable([at_once(1, 3)]))
    policy.observe(report(gone, (0,)))
    assert [state.num_steps for state in policy.states()] == [3]


# ---- steady states that were published of the reference


def steadily(entry: BatchRange, start: int, p: float) -> int:
    """The depth after 300 steps in which each drafted token is accepted with probability `p`."""
    policy = policy_of(entry, start)
    depth = start
    for _ in range(300):
        depth = feed(policy, mean_of(sum(p**k for k in range(1, depth + 1))))
    return depth


@pytest.mark.parametrize(
    ("start", "p", "then"),
    [
        *((3, 0.905, 3), (3, 0.92, 7), (7, 0.72, 7), (7, 0.705, 3)),
        *((1, 0.49, 1), (1, 0.51, 3), (3, 0.21, 3), (3, 0.19, 1)),
    ],
)
def test_depth_depends_on_its_history(start, p, then) -> None:
    """Between .713 and .912 both 3 and 7 are kept, between .201 and .5 both 1 and 3."""
    assert steadily(BatchRange(1, (1, 3, 7)), start, p) == then


def accepts(rng: random.Random, p: float, depth: int) -> int:
    return next((k for k in range(depth) if rng.random() >= p), depth)


def switches(bound: str, batch_size: int, p: float, rounds: int) -> tuple[float, float]:
    """Switches in 1000 steps and the fraction of steps that drafted, by chance alone."""
    table = range_table({bound: default_table(Policy.EMA)[bound]}, Policy.EMA)
    assert table is not None
    policy = EmaPolicy(table, 1)
    rng = random.Random(7)
    depths = []
    for _ in range(rounds):
        decision = policy.decide(batch_size, 0)
        depths.append(decision.num_steps)
        accepted = [accepts(rng, p, decision.num_steps) for _ in range(batch_size)]
        policy.observe(report(decision, accepted))
    moves = sum(a != b for a, b in pairwise(depths))
    return 1000 * moves / rounds, sum(depth > 0 for depth in depths) / rounds


@pytest.mark.parametrize(("bound", "batch_size"), [("32", 32), ("8", 8)])
def test_probing_never_backs_off(bound, batch_size) -> None:
    """Every decision is a switch where nothing is accepted: 200 of 1000, half of them drafting."""
    moves, drafting = switches(bound, batch_size, 0.3, 2_000)
    assert 190 <= moves <= 200
    assert drafting == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("p", [0.3, 0.88])
def test_chance_alone_moves_the_depth_of_a_single_request(p) -> None:
    moves, _ = switches("1", 1, p, 20_000)
    assert 18 <= moves <= 34, "published: 23 to 29"


# ---- the published algorithm, reimplemented as one function


def retold(entry: BatchRange, start: int, means: Sequence[float]) -> list[int]:
    c, depths = list(entry.candidate_steps), []
    now = start if start in c else c[len(c) // 2]
    ema, count = now - 1.0, 0
    for mean in means:
        depths.append(now)
        if now > 0:
            ema = (1 - entry.ema_alpha) * ema + entry.ema_alpha * min(mean, now)
        count += 1
        beyond = count - entry.warmup_batches
        if beyond <= 0 or beyond % entry.update_interval:
            continue
        i = old = c.index(now)
        if now == 0:
            i = min(i + 1, len(c) - 1)
            if c[i] > 0 and ema < 0:
                ema = c[i] - 1.0
            now = c[i]
            continue
        while i > 0 and ema <= c[i - 1] + (0.5 if c[i - 1] == 0 else -0.5) + entry.down_hysteresis:
            i -= 1
        fell = i < old
        while not fell and i < len(c) - 1 and ema > c[i] - 0.5 + entry.up_hysteresis:
            i += 1
        if entry.ceiling_coeff > 0 and c[i] <= now:
            while i > 0 and c[i] > max(1, math.ceil(ema * entry.ceiling_coeff)):
                i -= 1
        now = c[i]
    return depths


ENTRIES = st.builds(
    BatchRange,
    st.just(1),
    st.sets(st.integers(0, 8), min_size=1, max_size=5).map(lambda steps: tuple(sorted(steps))),
    st.sampled_from([-1.0, -0.25, 0.0, 0.5]),
    st.sampled_from([-1.0, -0.25, 0.0, 0.5, 1.0]),
    st.sampled_from([0.0, 0.0, 0.5, 1.0, 2.0]),
    st.sampled_from([0.2, 0.5, 1.0]),
    st.integers(1, 3),
    st.integers(0, 3),
)


@settings(deadline=None, max_examples=200)
@given(ENTRIES, st.integers(0, 8), st.lists(st.integers(0, 8), max_size=60))
def test_it_is_the_published_algorithm(entry, start, means) -> None:
    policy, depths = policy_of(entry, start), []
    for mean in means:
        decision = policy.decide(1, 0)
        depths.append(decision.num_steps)
        policy.observe(report(decision, [min(mean, decision.num_steps)]))
    assert depths == retold(entry, start, means)
