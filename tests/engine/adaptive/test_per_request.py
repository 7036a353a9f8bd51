"""Goodput over requests that differ: who verifies how much, limits, and what is probed."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode_engine.adaptive.cost import CostModel, CostPoint
from specdecode_engine.adaptive.goodput import GoodputPolicy
from specdecode_engine.adaptive.policy import Decision, Feedback
from specdecode_engine.adaptive.request_acceptance import RequestAcceptance
from specdecode_engine.adaptive.table import BatchRange, RangeTable

CANDIDATES = (0, 1, 3, 7)
TABLE = RangeTable([BatchRange(1, CANDIDATES)])


class Machine:
    """6 ms, a time per row, 0.3 ms per draft step, and a time per request in each."""

    def __init__(self, row_s: float = 1e-4, draft_row_s: float = 1e-6) -> None:
        self.row_s, self.draft_row_s = row_s, draft_row_s

    def seconds(self, size: int, num_steps: int, rows: int) -> float:
        drafting_s = num_steps * (0.3e-3 + self.draft_row_s * size)
        return 6e-3 + self.row_s * rows + drafting_s

    def points(self) -> list[CostPoint]:
        return [
            CostPoint(size, steps, 0, self.seconds(size, steps, rows), rows)
            for size in (1, 4, 16, 64)
            for steps in CANDIDATES
            for rows in {size, size * (steps + 1)}
        ]


def make_policy(
    machine: Machine,
    topk: int = 1,
    is_padded: bool = False,
    table: RangeTable = TABLE,
) -> GoodputPolicy:
    return GoodputPolicy(
        table,
        CostModel(machine.points()),
        3,
        topk=topk,
        is_padded=is_padded,
    )


class Served:
    """Serves requests with acceptance of their own; results come one step late."""

    def __init__(
        self, policy: GoodputPolicy, machine: Machine, rates: Sequence[float], limit: int = 99
    ) -> None:
        self.policy, self.machine, self.rates = policy, machine, rates
        self.requests = [RequestAcceptance(limit) for _ in rates]
        self.draw = random.Random(3)
        self.tokens = self.seconds = 0.0
        self.late: Feedback | None = None

    def run(self, steps: int, distinguish: bool = True, topk: int = 1) -> list[Decision]:
        decisions = []
        self.tokens = self.seconds = 0.0
        for _ in range(steps):
            requests = tuple(self.requests) if distinguish else ()
            decision = self.policy.decide(len(self.rates), 0, requests)
            num_steps = decision.num_steps
            depths = decision.verified or (num_steps,) * len(self.rates)
            accepted = tuple(map(self._length, self.rates, depths))
            rows = len(self.rates) + topk * sum(depths)
            seconds = self.machine.seconds(len(self.rates), num_steps, rows)
            self.tokens += sum(accepted) + len(accepted)
            self.seconds += seconds
            if self.late:
                self.policy.observe(self.late)
            noisy = seconds * self.draw.lognormvariate(0.0, 0.03)
            self.late = Feedback(
                decision, len(self.rates), 0, accepted, noisy,
                verified=decision.verified, requests=requests, rows=rows,
            )  # fmt: skip
            decisions.append(decision)
        return decisions

    def _length(self, rate: float, depth: int) -> int:
        length = 0
        while length < depth and self.draw.random() < rate:
            length += 1
        return length


class Padded(Machine):
    """Computes the rows of whole drafts, as CUDA graphs do."""

    def seconds(self, size: int, num_steps: int, rows: int) -> float:
        return super().seconds(size, num_steps, size * (num_steps + 1))


def depths_of(decisions: list[Decision], place: int) -> float:
    """Mean verified positions of one request."""
    found = [one.verified[place] if one.verified else one.num_steps for one in decisions]
    return sum(found) / len(found)


def test_requests_whose_drafts_are_accepted_verify_more_and_more_tokens_come_of_it() -> None:
    machine, rates = Machine(row_s=2e-4), [0.95, 0.2] * 16
    served = Served(make_policy(machine), machine, rates)
    served.run(200)
    decisions = served.run(400)
    per_request = served.tokens / served.seconds
    assert depths_of(decisions, 0) > 4.0
    assert depths_of(decisions, 1) < 1.5
    alike = Served(make_policy(machine), machine, rates)
    alike.run(200, distinguish=False)
    alike.run(400, distinguish=False)
    assert per_request > 1.1 * alike.tokens / alike.seconds


def test_the_first_steps_verify_whole_drafts() -> None:
    served = Served(make_policy(Machine(row_s=1e-3)), Machine(row_s=1e-3), [0.8] * 64)
    assert [(one.num_steps, one.verified) for one in served.run(1)] == [(3, ())]


def test_probes_verify_as_many_requests_as_take_the_time_of_drafting() -> None:
    verified = []
    for row_s in (1e-3, 2e-4, 1e-6):
        served = Served(make_policy(Machine(row_s)), Machine(row_s, draft_row_s=1e-5), [0.01] * 64)
        probes = [one for one in served.run(400)[20:] if one.num_steps]
        verified.append(max(sum(one.verified or (one.num_steps,) * 64) for one in probes))
    assert 8 <= verified[0] <= 16 < verified[1] < verified[2] == 64


def test_a_draft_that_becomes_good_is_used_soon_where_probes_are_cheap() -> None:
    machine = Machine(row_s=1e-4)
    served = Served(make_policy(machine), machine, [0.02] * 32)
    assert sum(one.num_steps == 0 for one in served.run(400)[100:]) > 280
    served.rates = [0.9] * 32
    assert all(one.num_steps for one in served.run(200)[80:])


def test_requests_that_are_alike_cost_nothing_to_distinguish() -> None:
    machine, rates = Machine(), [0.8] * 16
    one = Served(make_policy(machine), machine, rates)
    one.run(200)
    one.run(400)
    other = Served(make_policy(machine), machine, rates)
    other.run(200, distinguish=False)
    other.run(400, distinguish=False)
    assert one.tokens / one.seconds > 0.98 * other.tokens / other.seconds


def test_rows_that_are_computed_anyway_are_verified() -> None:
    machine = Padded(row_s=2e-4)
    served = Served(make_policy(machine, is_padded=True), machine, [0.95, 0.2] * 8)
    decisions = served.run(600)[200:]
    assert {one.verified for one in decisions} == {()}
    alike = Served(make_policy(machine, is_padded=True), machine, [0.95, 0.2] * 8)
    alike.run(200, distinguish=False)
    alike.run(400, distinguish=False)
    served.run(400)
    assert served.tokens / served.seconds > 0.98 * alike.tokens / alike.seconds


def test_limits_and_ends_of_answers_hold_where_all_rows_are_computed() -> None:
    machine = Padded(row_s=1e-6)
    served = Served(make_policy(machine, is_padded=True), machine, [0.95] * 4)
    served.requests[1] = RequestAcceptance(2)
    served.requests[2] = RequestAcceptance(0)
    assert {one.verified for one in served.run(200)[20:]} == {(7, 2, 0, 7)}
    for request in served.requests:
        request.most = min(request.most, 3)
    decision = served.policy.decide(4, 0, served.requests)
    assert (decision.num_steps, decision.verified) == (3, (3, 2, 0, 3))


def test_a_draft_that_is_not_worth_a_row_is_not_drafted_either() -> None:
    machine = Machine(row_s=3e-3)
    served = Served(make_policy(machine), machine, [0.1] * 8)
    served.run(300)
    assert sum(one.num_steps == 0 for one in served.run(300)) > 280


def test_a_table_without_0_draft_steps_never_ceases_to_learn() -> None:
    machine, table = Machine(row_s=1e-3), RangeTable([BatchRange(1, (1, 3))])
    served = Served(make_policy(machine, table=table), machine, [0.02] * 4)
    served.requests[2] = RequestAcceptance(0)
    assert {one.verified for one in served.run(200)[100:]} == {(1, 1, 0, 1)}
    served.rates = [0.95] * 4
    assert depths_of(served.run(400)[200:], 0) > 2.5


@pytest.mark.parametrize("limit", [0, 1, 2, 5])
def test_no_request_exceeds_its_limit(limit: int) -> None:
    machine = Machine(row_s=1e-6)
    served = Served(make_policy(machine), machine, [0.95] * 4)
    served.requests[1] = RequestAcceptance(limit)
    decisions = served.run(200)
    assert all((one.verified or (one.num_steps,) * 4)[1] <= limit for one in decisions)
    assert max(depths_of(decisions, place) for place in (0, 2, 3)) > 5
    assert depths_of(decisions[20:], 1) > limit - 1


def test_nothing_is_drafted_beyond_the_last_position_that_is_verified() -> None:
    machine = Machine(row_s=1e-6)
    served = Served(make_policy(machine), machine, [0.95] * 4)
    served.run(100)
    for request in served.requests:
        request.most = 2
    decision = served.policy.decide(4, 0, served.requests)
    assert (decision.num_steps, decision.verified) == (3, (2, 2, 2, 2))
    for request in served.requests:
        request.most = 0
    decision = served.policy.decide(4, 0, served.requests)
    assert (decision.num_steps, decision.verified) == (0, ())


def test_a_draft_of_several_nodes_per_step_costs_as_many_rows() -> None:
    machine, rates = Machine(row_s=3e-4), [0.6] * 16
    chain = Served(make_policy(machine), machine, rates)
    chain.run(200)
    tree = Served(make_policy(machine, topk=4), machine, rates)
    tree.run(200, topk=4)
    deep = sum(sum(one.verified or (one.num_steps,) * 16) for one in chain.run(200))
    assert sum(sum(one.verified or (one.num_steps,) * 16) for one in tree.run(200, topk=4)) < deep


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=9),
    st.integers(0, 2**16),
)
def test_decisions_are_valid_for_any_batch(bounds: list[int], seed: int) -> None:
    draw = random.Random(seed)
    policy = make_policy(Machine(row_s=draw.choice([1e-6, 1e-4, 1e-2])))
    for _ in range(30):
        requests = [RequestAcceptance(most) for most in bounds]
        decision = policy.decide(len(requests), 0, requests)
        assert decision.num_steps in CANDIDATES
        assert len(decision.verified) in (0, len(requests))
        depths = decision.verified or (decision.num_steps,) * len(requests)
        if decision.verified:
            assert all(map(int.__le__, depths, [one.most for one in requests]))
            assert max(depths) <= decision.num_steps
        accepted = tuple(draw.randint(0, depth) for depth in depths)
        policy.observe(
            Feedback(
                decision,
                len(requests),
                0,
                accepted,
                draw.uniform(0.001, 0.1),
                verified=decision.verified,
                requests=tuple(requests),
                rows=len(requests) + sum(depths),
            )
        )
