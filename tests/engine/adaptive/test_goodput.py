"""The goodput policy finds the best depth, including 0, without oscillation and at low cost."""

import math
import random
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode_engine.adaptive.cost import CostModel, CostPoint, Estimates
from specdecode_engine.adaptive.goodput import RESTING_STEPS, GoodputPolicy
from specdecode_engine.adaptive.policy import Decision, Feedback, Reason
from specdecode_engine.adaptive.table import BatchRange, MarginRouting, RangeTable

CANDIDATES = (0, 1, 2, 3, 5, 7)
ONE_RANGE = RangeTable([BatchRange(1, CANDIDATES)])
Rate = Callable[[int], float]


def dense_s(batch_size: int, num_steps: int) -> float:
    """A machine on which rows cost little: 6 ms, 21 µs a row, 0.3 ms a draft step."""
    return 6e-3 + 21e-6 * batch_size * (num_steps + 1) + 0.3e-3 * num_steps


def dear_s(batch_size: int, num_steps: int) -> float:
    """A machine on which rows cost much: 6 ms, 1 ms a row, 0.5 ms a draft step."""
    return 6e-3 + 1e-3 * batch_size * (num_steps + 1) + 0.5e-3 * num_steps


Machine = Callable[[int, int], float]


def points(machine: Machine, error: float = 0.0) -> Iterable[CostPoint]:
    """Measure it, each cell wrong by up to `error`."""
    draw = random.Random(0)
    for size in (1, 4, 8, 16, 64):
        for steps in CANDIDATES:
            factor = 1.0 + draw.uniform(-error, error)
            yield CostPoint(size, steps, 0, factor * machine(size, steps))


def policy(machine: Machine, table: RangeTable = ONE_RANGE, error: float = 0.0) -> GoodputPolicy:
    return GoodputPolicy(table, CostModel(points(machine, error)), 3)


class Rounds:
    """Runs a policy against a machine and a draft of known acceptance; results come one late."""

    def __init__(self, depth: GoodputPolicy, machine: Machine, seed: int = 0) -> None:
        self.depth, self.machine = depth, machine
        self.draw = random.Random(seed)
        self.decisions: list[Decision] = []
        self.seconds: list[float] = []
        self.gaps_s: list[float] = []
        self.late: Feedback | None = None
        self.missed = 0

    def run(self, rounds: int, size: int | Callable[[int], int], rate: Rate | float) -> list[int]:
        """Return the depths of these steps."""
        first = len(self.decisions)
        for number in range(rounds):
            batch_size = size if isinstance(size, int) else size(number)
            decision = self.depth.decide(batch_size, 0)
            accept = rate if isinstance(rate, float) else rate(number)
            seconds = self.machine(batch_size, decision.num_steps)
            seconds += 20e-6 * batch_size * min(self.missed, 64) * (decision.num_steps > 0)
            self.missed = 0 if decision.num_steps else self.missed + 1
            self.decisions.append(decision)
            self.seconds.append(seconds)
            accepted = tuple(self._length(decision.num_steps, accept) for _ in range(batch_size))
            if self.late:
                self.depth.observe(self.late)
            noisy = seconds * self.draw.lognormvariate(0.0, 0.03)
            self.gaps_s.append(noisy)
            self.late = Feedback(decision, batch_size, 0, accepted, noisy, gap_s=noisy)
        return [decision.num_steps for decision in self.decisions[first:]]

    def _length(self, num_steps: int, rate: float) -> int:
        length = 0
        while length < num_steps and self.draw.random() < rate:
            length += 1
        return length


@pytest.mark.parametrize("has_costs", [True, False], ids=["measured", "unmeasured"])
@pytest.mark.parametrize("first", [0, 300])
@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_a_round_with_an_impossible_time_changes_no_later_decision(
    seconds: float, first: int, has_costs: bool
) -> None:
    depth = policy(dense_s) if has_costs else GoodputPolicy(ONE_RANGE, CostModel(), 3)
    rounds = Rounds(depth, dense_s)
    rounds.run(first, 4, 0.85)
    depth.observe(Feedback(depth.decide(4, 0), 4, 0, (), seconds))
    depths = rounds.run(600, 4, 0.85)
    assert share(depths[200:], {5, 7}) > 0.8
    for state in depth.states():
        assert all(math.isfinite(rate) and rate > 0 for rate in state.tokens_per_second.values())


def close_s(batch_size: int, num_steps: int) -> float:
    """A machine on which a draft step gains 3 % per token where 0.9 is accepted."""
    tokens = sum(0.9**length for length in range(num_steps + 1))
    return 1e-3 * batch_size * tokens / (1.0 + 0.03 * num_steps)


@pytest.mark.parametrize(("answer_tokens", "best"), [(8, 0), (4000, 7)])
def test_short_answers_need_a_gain_larger_than_what_their_ends_lose(
    answer_tokens: int, best: int
) -> None:
    depth = policy(close_s)
    rounds = Rounds(depth, close_s)
    rounds.run(50, 8, 0.9)
    for _ in range(32):
        ended = (answer_tokens,) * 4
        depth.observe(Feedback(depth.decide(8, 0), 8, 0, (), math.nan, ended=ended))
    assert share(rounds.run(600, 8, 0.9)[300:], {best}) > 0.8


class LimitedRounds(Rounds):
    """A machine on which a step verifies one token of a request on average, whatever it drafts."""

    def run(self, rounds: int, size: int | Callable[[int], int], rate: Rate | float) -> list[int]:
        whole = self.machine
        self.machine = lambda batch_size, num_steps: (
            whole(batch_size, min(num_steps, 1)) + 0.1e-3 * max(num_steps - 1, 0)
        )
        found = super().run(rounds, size, rate)
        self.machine = whole
        return found


def test_a_range_that_verifies_less_than_it_drafts_learns_its_own_costs_and_acceptance() -> None:
    ranges = [BatchRange(1, (0, 3)), BatchRange(32, (0, 3), verify_tokens=1)]
    depth = policy(dear_s, RangeTable(ranges))
    whole, limited = Rounds(depth, dear_s), LimitedRounds(depth, dear_s)
    assert share(whole.run(600, 4, 0.6)[300:], {0}) > 0.8  # the rows of three tokens cost too much
    assert share(limited.run(600, 64, 0.6)[300:], {3}) > 0.8  # those of one token do not
    assert {one.verify_tokens for one in limited.decisions} == {1}
    assert share(whole.run(600, 4, 0.6)[300:], {0}) > 0.8
    known = {state.range_start: state.survival for state in depth.states()}
    assert known[1] != known[32]


def switches(depths: list[int]) -> int:
    return sum(one != other for one, other in pairwise(depths))


def share(depths: list[int], wanted: set[int]) -> float:
    return sum(depth in wanted for depth in depths) / len(depths)


@pytest.mark.parametrize(
    ("machine", "size", "rate", "best"),
    [
        (dense_s, 4, 0.85, {7}),
        (dense_s, 4, 0.3, {1, 2}),
        (dense_s, 64, 0.6, {2, 3}),
        (dear_s, 1, 0.9, {5, 7}),
        (dear_s, 16, 0.3, {0}),
        (dear_s, 64, 0.6, {0}),
    ],
)
def test_it_settles_on_the_best_depth(
    machine: Machine, size: int, rate: float, best: set[int]
) -> None:
    depths = Rounds(policy(machine), machine).run(600, size, rate)
    assert share(depths[100:], best) > 0.93
    assert switches(depths[200:]) <= 8


def test_it_starts_with_the_depth_at_start_and_reports_it() -> None:
    rounds = Rounds(policy(dense_s), dense_s)
    rounds.run(2, 1, 0.8)
    assert [(d.num_steps, d.reason) for d in rounds.decisions] == [(3, Reason.START)] * 2


def test_depth_zero_comes_within_a_few_rounds_of_a_useless_draft_and_stays() -> None:
    depths = Rounds(policy(dear_s), dear_s).run(1000, 8, 0.02)
    assert 0 in depths[:6]
    assert share(depths[6:], {0}) > 0.95


def goodput(machine: Machine, size: int, depth: int, rate: float) -> float:
    """True tokens per second of a request."""
    return sum(rate**k for k in range(depth + 1)) / machine(size, depth)


@pytest.mark.parametrize(("size", "within"), [(4, 20), (64, 6)])
def test_a_step_change_is_followed_soon(size: int, within: int) -> None:
    rounds = Rounds(policy(dense_s), dense_s)
    rounds.run(300, size, 0.85)
    for rate in (0.25, 0.85):
        best = max(goodput(dense_s, size, depth, rate) for depth in CANDIDATES)
        near = {k for k in CANDIDATES if goodput(dense_s, size, k, rate) > 0.92 * best}
        depths = rounds.run(300, size, rate)
        assert share(depths[within : within + 40], near) > 0.7
        assert share(depths[within + 40 :], near) > 0.9


def test_it_returns_from_depth_zero_when_the_draft_becomes_good() -> None:
    rounds = Rounds(policy(dear_s), dear_s)
    assert share(rounds.run(600, 4, 0.02)[100:], {0}) > 0.9
    back = rounds.run(700, 4, 0.95)
    assert share(back[400:], {2, 3, 5, 7}) > 0.95


@pytest.mark.parametrize("size", [1, 4, 64])
def test_probes_take_less_than_a_hundredth_of_the_time_of_a_useless_draft(size: int) -> None:
    rounds = Rounds(policy(dear_s), dear_s)
    rounds.run(100, size, 0.02)
    depths = rounds.run(3000, size, 0.02)
    emitted = sum(1.0 + 0.02 * (depth > 0) for depth in depths)
    assert sum(rounds.seconds[100:]) < 1.01 * emitted * dear_s(size, 0)
    assert switches(depths[1000:]) <= 20


def test_pauses_between_probes_grow() -> None:
    rounds = Rounds(policy(dear_s), dear_s)
    depths = rounds.run(2000, 16, 0.02)
    starts = [n for n, (a, b) in enumerate(pairwise(depths)) if a == 0 < b]
    pauses = [later - earlier for earlier, later in pairwise(starts)]
    assert pauses[-1] >= 100
    assert pauses[0] < pauses[-1]


def test_most_steps_at_depth_zero_repeat_it_without_an_estimate() -> None:
    depth = policy(dear_s)
    zeros = Rounds(depth, dear_s).run(400, 8, 0.02).count(0)
    assert zeros > 300
    assert 0 < depth.cost.steps(8, 0) < 2 * zeros / RESTING_STEPS


def test_no_cost_is_probed_in_steps_that_chunks_of_prompts_share() -> None:
    depth = policy(dense_s)
    Rounds(depth, dense_s).run(400, 8, 0.9)
    chosen, reasons = depth.states()[0].num_steps, set[Reason]()
    for _ in range(400):
        decision = depth.decide(3, 0, prefill_s=0.01)  # a size without measured steps
        reasons.add(decision.reason)
        accepted = (decision.num_steps,) * 3
        depth.observe(Feedback(decision, 3, 0, accepted, 0.02, is_alone=False))
    assert chosen > 0
    assert Reason.PROBE not in reasons
    assert Reason.PROBE in {depth.decide(3, 0).reason for _ in range(4)}


def test_steps_without_a_proposal_repeat_the_depth_without_an_estimate_until_one_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    depth, estimates, estimate = policy(dense_s), list[int](), GoodputPolicy._estimate

    def counted(policy: GoodputPolicy, *arguments: Any) -> Estimates:
        estimates.append(policy._sequence)
        return estimate(policy, *arguments)

    rounds = Rounds(depth, dense_s)
    chosen = rounds.run(200, 4, 0.9)[-1]
    assert chosen > 0
    monkeypatch.setattr(GoodputPolicy, "_estimate", counted)
    first = depth._sequence
    for _ in range(80):
        decision = depth.decide(4, 0)
        assert decision.num_steps == chosen
        depth.observe(Feedback(decision, 4, 0, (), dense_s(4, 0), is_full=False))
    assert len(estimates) <= 80 // (RESTING_STEPS + 1) + 1
    known = depth.cost.steps(4, chosen)
    decision = depth.decide(4, 0)
    depth.observe(Feedback(decision, 4, 0, (chosen,) * 4, dense_s(4, chosen)))
    assert depth.cost.steps(4, chosen) == known + 1
    depth.decide(4, 0)
    assert estimates[-1] == depth._sequence > first


def test_a_smaller_batch_ends_the_rest_at_depth_zero_at_once() -> None:
    rounds = Rounds(policy(dear_s), dear_s)
    rounds.run(40, 1, 0.9)
    assert share(rounds.run(50, 64, 0.9)[10:], {0}) > 0.8
    assert 0 not in rounds.run(20, 1, 0.9)[1:]


def test_crossing_a_bound_every_round_does_not_switch_every_round() -> None:
    table = RangeTable([BatchRange(1, (1, 3, 7)), BatchRange(8, (0, 1, 2)), BatchRange(32, (0,))])
    rounds = Rounds(policy(dense_s, table), dense_s)
    rounds.run(300, 7, 0.7)
    depths = rounds.run(500, lambda number: 7 + number % 2, 0.7)
    assert switches(depths) <= 10


@settings(derandomize=True, max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 80), min_size=1, max_size=150))
def test_every_depth_is_one_that_graphs_were_captured_for(sizes: list[int]) -> None:
    table = RangeTable([BatchRange(1, (1, 3, 7)), BatchRange(8, (0, 1, 2)), BatchRange(32, (0,))])
    rounds, routing = Rounds(policy(dense_s, table), dense_s), MarginRouting()
    for size in sizes:
        depth = rounds.run(1, size, 0.6)[0]
        req_indices = {entry.lower_bound: entry for entry in routing.reachable(table, size)}
        assert rounds.decisions[-1].range_start in req_indices
        assert depth in req_indices[rounds.decisions[-1].range_start].candidate_steps


@settings(derandomize=True, max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.floats(0.0, 1.0))
def test_the_same_rounds_give_the_same_decisions(seed: int, rate: float) -> None:
    one, other = Rounds(policy(dear_s), dear_s, seed), Rounds(policy(dear_s), dear_s, seed)
    one.run(120, 4, rate)
    other.run(120, 4, rate)
    assert one.decisions == other.decisions
    assert one.depth.states() == other.depth.states()


def test_what_belongs_to_another_table_or_to_no_decision_is_dropped() -> None:
    depth = policy(dense_s)
    old = depth.decide(4, 0)
    depth.reload(ONE_RANGE)
    before = depth.states()
    depth.observe(Feedback(old, 4, 0, (3, 3, 3, 3), 1.0))
    depth.observe(Feedback(Decision(3, 99, 2, Reason.KEEP), 4, 0, (3, 3, 3, 3), 1.0))
    depth.observe(Feedback(Decision(3, 1, 7, Reason.KEEP), 4, 0, (3, 3, 3, 3), 1.0))
    assert depth.states() == before


def test_a_round_whose_requests_all_ended_teaches_only_its_time() -> None:
    depth = policy(dense_s)
    before = depth.states()[0].survival
    decision = depth.decide(4, 0)
    depth.observe(Feedback(decision, 4, 0, (), 2 * dense_s(4, 3)))
    assert depth.states()[0].survival == before
    assert depth.cost.seconds(4, 3, 0) > 1.1 * dense_s(4, 3)


def test_a_reload_keeps_what_was_learned() -> None:
    rounds = Rounds(policy(dense_s), dense_s)
    rounds.run(300, 4, 0.85)
    survival = rounds.depth.states()[0].survival
    rounds.depth.reload(RangeTable([BatchRange(1, (0, 2, 5)), BatchRange(16, (0, 1))]))
    after = rounds.depth.states()
    assert after[0].survival[:5] == pytest.approx(survival[:5], abs=0.05)
    assert after[1].survival == pytest.approx(after[0].survival, abs=0.1)
    assert rounds.run(20, 4, 0.85)[0] == 5
    assert set(rounds.run(60, 32, 0.85)) <= {0, 1}


def test_a_deeper_table_after_a_reload_is_used() -> None:
    rounds = Rounds(policy(dense_s, RangeTable([BatchRange(1, (0, 1))])), dense_s)
    rounds.run(200, 4, 0.9)
    rounds.depth.reload(ONE_RANGE)
    assert share(rounds.run(200, 4, 0.9)[50:], {7}) > 0.9


@pytest.mark.parametrize("rate", [0.85, 0.5])
def test_a_wrong_table_of_costs_heals(rate: float) -> None:
    wrong = Rounds(policy(dense_s, error=0.2), dense_s)
    depths = wrong.run(1500, 8, rate)[300:]

    best = max(goodput(dense_s, 8, depth, rate) for depth in CANDIDATES)
    mean = sum(goodput(dense_s, 8, depth, rate) for depth in depths) / len(depths)
    assert mean > 0.97 * best


def test_catching_up_after_depth_zero_does_not_make_the_depth_look_dear() -> None:
    rounds = Rounds(policy(dear_s), dear_s)
    rounds.run(1500, 16, 0.02)
    assert rounds.depth.cost.seconds(16, 1, 0) < 1.1 * dear_s(16, 1)


def test_a_step_that_computed_prompts_too_teaches_nothing_about_costs() -> None:
    rounds = Rounds(policy(dense_s), dense_s)
    rounds.run(300, 8, 0.6)
    depth = rounds.depth
    before = [depth.cost.seconds(8, steps, 0) for steps in CANDIDATES]
    for _ in range(50):
        decision = depth.decide(8, 0)
        seconds = 9.0 * dense_s(8, decision.num_steps)
        depth.observe(Feedback(decision, 8, 0, (1,) * 8, seconds, is_alone=False))
    assert [depth.cost.seconds(8, steps, 0) for steps in CANDIDATES] == before


def test_it_learns_without_any_measured_cost() -> None:
    rounds = Rounds(GoodputPolicy(ONE_RANGE, CostModel(), 3), dense_s)
    assert share(rounds.run(400, 4, 0.85)[150:], {5, 7}) > 0.9


def test_states_contain_what_is_expected_of_each_depth() -> None:
    rounds = Rounds(policy(dense_s), dense_s)
    rounds.run(200, 4, 0.85)
    (state,) = rounds.depth.states()
    assert state.candidate_steps == CANDIDATES
    assert state.num_steps == 7
    assert state.survival == pytest.approx([0.85] * 7, abs=0.1)
    assert state.tokens_per_second[0] == pytest.approx(4 / dense_s(4, 0), rel=0.05)
    assert max(state.tokens_per_second, key=state.tokens_per_second.__getitem__) == 7
    assert state.ema is None
