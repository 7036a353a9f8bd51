"""Which steps keep hidden states for the next draft, by what a policy decides."""

import math

import pytest

from specdecode_engine.adaptive.draft_rest import AFTER_PROBE, PROBE_LEAD, RISE_LEAD, DraftRest
from specdecode_engine.adaptive.policy import Decision, Reason, StaticPolicy
from specdecode_engine.adaptive.table import BatchRange, RangeTable

KEPT = 64


class Scripted(StaticPolicy):
    """Decides the given draft steps, one after the other."""

    def __init__(self, *script: tuple[int, Reason], table: RangeTable | None = None) -> None:
        super().__init__(0, table)
        self.script = list(script)

    def decide(self, batch_size: int, kv_tokens: int, prefill_s: float = 0.0) -> Decision:
        num_steps, reason = self.script.pop(0)
        start = self.table.range_of(batch_size).lower_bound
        return Decision(num_steps, start, len(self.script), reason)


def follow(rest: DraftRest, *script: tuple[int, Reason]) -> list[tuple[int, bool]]:
    """Draft steps of each step, and whether it keeps hidden states, until the script has ended."""
    policy, followed = Scripted(*script), []
    while policy.script or rest._held:
        decision = rest.decide(policy, 1, 0, 0.0)
        followed.append((decision.num_steps, rest.keeps))
    return followed


STAY, RISE, PROBE = (0, Reason.KEEP), (3, Reason.RISE), (1, Reason.PROBE)


def test_a_short_stay_keeps_everything_and_the_next_draft_is_at_once():
    assert follow(DraftRest(KEPT), *[STAY] * KEPT, RISE) == [(0, True)] * KEPT + [(3, True)]


def test_a_long_stay_keeps_nothing_later_and_the_next_draft_is_late():
    rest = DraftRest(KEPT)
    expected = [(0, True)] * KEPT + [(0, False)] * 40 + [(0, True)] * RISE_LEAD + [(3, True)]
    assert follow(rest, *[STAY] * (KEPT + 40), RISE) == expected
    # The next stay is a new one.
    assert follow(rest, *[STAY] * KEPT, RISE) == [(0, True)] * KEPT + [(3, True)]


def test_a_probe_has_more_rows_and_what_follows_it_soon_is_not_late():
    rest = DraftRest(KEPT)
    follow(rest, *[STAY] * (KEPT + 40))
    found = follow(rest, PROBE, PROBE, *[STAY] * AFTER_PROBE, RISE)
    lead, stay = [(0, True)] * PROBE_LEAD, [(0, True)] * AFTER_PROBE
    assert found == [*lead, (1, True), (1, True), *stay, (3, True)]


def test_the_stay_after_a_probe_keeps_hidden_states_for_a_few_steps_only():
    rest = DraftRest(KEPT)
    follow(rest, *[STAY] * (KEPT + 40), PROBE)
    stay = [(0, True)] * AFTER_PROBE + [(0, False)] * 3
    assert follow(rest, *[STAY] * (AFTER_PROBE + 3)) == stay


TABLE = RangeTable([BatchRange(1, (0, 1, 3)), BatchRange(8, (0, 2))])


def resting(policy: Scripted) -> DraftRest:
    """A rest whose lead to the decision after a long stay has begun."""
    rest = DraftRest(KEPT)
    for _ in range(KEPT + 2):
        assert rest.decide(policy, 1, 0, 0.0).num_steps == 0
    assert rest.keeps
    return rest


@pytest.mark.parametrize("reason", [Reason.RISE, Reason.PROBE])
def test_a_decision_of_another_table_or_range_is_not_carried_out(reason: Reason):
    stay, drafts = [STAY] * (KEPT + 1), (3, reason)
    policy = Scripted(*stay, drafts, STAY, table=TABLE)
    rest = resting(policy)
    policy.reload(TABLE.within(1.0))
    assert rest.decide(policy, 1, 0, 0.0).num_steps == 0
    assert not policy.script
    assert not rest.keeps
    policy = Scripted(*stay, drafts, (2, reason), table=TABLE)
    rest = resting(policy)
    lead = PROBE_LEAD if reason is Reason.PROBE else RISE_LEAD
    decisions = [rest.decide(policy, 8, 0, 0.0) for _ in range(lead)]
    assert [one.num_steps for one in decisions] == [0] * (lead - 1) + [2]


@pytest.mark.parametrize("drafts", [RISE, PROBE])
@pytest.mark.parametrize(("max_step_s", "shared"), [(math.inf, 0), (1.0, 10)])
def test_under_a_limit_the_first_draft_waits_for_a_step_without_prompts(
    max_step_s: float, shared: int, drafts: tuple[int, Reason]
):
    policy = Scripted(*[STAY] * (KEPT + 1), drafts, table=TABLE.within(max_step_s))
    rest = resting(policy)
    lead = PROBE_LEAD if drafts is PROBE else RISE_LEAD
    for _ in range(lead - 1 + shared):
        assert rest.decide(policy, 1, 0, prefill_s=0.1).num_steps == 0
    assert rest.decide(policy, 1, 0, 0.0 if shared else 0.1).num_steps == drafts[0]


def test_a_draft_that_reads_one_hidden_state_is_one_step_late():
    assert follow(DraftRest(1), STAY, STAY, RISE) == [
        (0, True),
        (0, False),
        (0, True),
        (3, True),
    ]


def test_prompts_wait_while_a_draft_rests_that_can_compute_them_later():
    policy, rest = Scripted(STAY, PROBE, STAY, RISE), DraftRest(computes_late=True)
    other, defers = Scripted(STAY), [rest.defers_prompts]
    while policy.script:
        rest.decide(policy, 1, 0, 0.0)
        defers.append(rest.defers_prompts)
    assert defers == [False, True, False, True, False]
    reads_hidden_states = DraftRest(KEPT)
    reads_hidden_states.decide(other, 1, 0, 0.0)
    assert not reads_hidden_states.defers_prompts


def test_a_draft_that_reads_no_hidden_states_never_waits():
    found = follow(DraftRest(math.inf), *[STAY] * 300, PROBE)
    assert found == [(0, True)] * 300 + [(1, True)]
