"""Policy goodput: draft steps and verified positions with the most expected tokens per second."""

import math
from collections.abc import Collection
from dataclasses import dataclass

from specdecode_engine.adaptive.acceptance import expected_tokens
from specdecode_engine.adaptive.cost import CostModel
from specdecode_engine.adaptive.estimates import HOLD_STEPS, Batch, Estimates, Estimator
from specdecode_engine.adaptive.exploration import (
    PROBE_DRAFTS,
    WORTHWHILE,
    Exploration,
    return_steps,
)
from specdecode_engine.adaptive.policy import Decision, Feedback, RangeState, Reason, Requests
from specdecode_engine.adaptive.request_acceptance import OWN_MEMORY_STEPS
from specdecode_engine.adaptive.table import BatchRange, MarginRouting, RangeTable, Routing

# Drafts before the first choice.
START_TRIALS = 6.0
# Required gain over the present candidate, and the larger one while few drafts are known.
MIN_GAIN, DOUBT = 0.01, 0.3
# Tokens that staying must have cost before a switch, in steps (ski rental): a large gain switches
# at once, and a batch that alternates between two sizes does not switch each time.
SWITCH_COST = 0.1
# By how much a candidate may be cheaper than expected, divided by the served steps that have
# measured it: a table of costs may be off by 20 % in both directions, a guess by more.
OPTIMISM = 0.55
COST_PROBE_STEPS = 2  # of such a probe
# Steps without a draft that a draft catches up on at most, as requests come and go.
MAX_MISSED_STEPS = 128
# Steps at 0 draft steps between two estimates, which would take a noticeable share of the time of a
# small model's step; nothing is learned about the draft there, and a new batch size ends the rest.
RESTING_STEPS = 7


@dataclass(slots=True)
class RangeControl:
    """The present choice of one batch range; owned by `GoodputPolicy`."""

    entry: BatchRange
    num_steps: int
    exploration: Exploration
    batch: Batch  # of the last decision
    reason: Reason = Reason.START
    probe_num_steps: int = 0
    probe_steps: int = 0  # remaining steps of the present probe
    estimates: Estimates | None = None  # the last ones, and those that chose last
    considered: Estimates | None = None
    confirmed_at: int = 0  # sequence number of the last decision that looked for a better candidate
    forgone: float = 0.0  # by staying, in tokens of a step
    saved_share: float = 0.0  # of the time, by speculation, as expected last
    rests_until: int = 0  # sequence number of the last decision that repeats 0 draft steps

    def is_resting(self, sequence: int) -> bool:
        """Whether a decision repeats 0 draft steps without an estimate."""
        return self.rests_until - RESTING_STEPS < sequence <= self.rests_until


class GoodputPolicy:
    """Chooses by E[tokens] / seconds: acceptance of each request, cost of rows and drafting.

    Args:
        table: candidates by batch range; 0 draft steps compete wherever they are listed.
        cost: seconds of steps; refined here by every step.
        num_steps: draft steps until something is known.
        topk: nodes of a draft per draft step.
        routing: which range decides; with hysteresis by default.
        is_padded: whether steps compute the rows of whole drafts, as CUDA graphs do.
    """

    def __init__(
        self,
        table: RangeTable,
        cost: CostModel,
        num_steps: int,
        topk: int = 1,
        routing: Routing | None = None,
        is_padded: bool = False,
    ) -> None:
        self.cost = cost
        self.routing = routing or MarginRouting()
        self._num_steps = num_steps
        self._estimator = Estimator(cost, topk, is_padded=is_padded)
        self._sequence = 0
        self._range_start: int | None = None
        self._controls: dict[int, RangeControl] = {}
        self._last_num_steps = num_steps
        self._missed = 0  # steps without a draft that the draft has not caught up on
        self.reload(table)

    def decide(self, batch_size: int, kv_tokens: int, requests: Requests = ()) -> Decision:
        self._sequence += 1
        entry = self.routing.route(self.table, batch_size, self._range_start)
        self._range_start = entry.lower_bound
        control = self._controls[entry.lower_bound]
        if batch_size == control.batch.size and control.is_resting(self._sequence):
            return Decision(0, entry.lower_bound, self._sequence, Reason.KEEP)
        control.rests_until = 0
        if batch_size.bit_length() != control.batch.size.bit_length():
            control.exploration.restart(self._sequence, batch_size)
        control.batch = self._estimator.batch(batch_size, kv_tokens, requests)
        num_steps, reason = self._choose(control)
        num_steps, verified = self._verified(control, num_steps, reason)
        return Decision(num_steps, entry.lower_bound, self._sequence, reason, verified)

    def observe(self, feedback: Feedback) -> None:
        decision = feedback.decision
        control = self._controls.get(decision.range_start)
        if control is None or not self._first_valid <= decision.sequence <= self._sequence:
            return
        is_return = decision.num_steps > 0 and not control.num_steps
        has_changed = decision.num_steps > 0 and self._estimator.learn(feedback, is_probe=is_return)
        if has_changed:
            control.exploration.restart(self._sequence, feedback.batch_size)
        if is_return:
            control.rests_until = 0
            if has_changed:  # the draft has caught up: now is the time to learn more of it
                control.probe_num_steps = decision.num_steps
                control.probe_steps = return_steps(feedback.batch_size)
        if control.estimates is not None:
            control.estimates.age(feedback.batch_size, is_expired=has_changed or is_return)
        if control.is_resting(decision.sequence):
            if feedback.has_cost():
                control.exploration.earn(feedback.seconds, saved_share=0.0)
        else:
            self._account(control, feedback, self._learn_cost(feedback))
        self._missed = 0 if decision.num_steps else min(self._missed + 1, MAX_MISSED_STEPS)
        self._last_num_steps = decision.num_steps

    def reload(self, table: RangeTable) -> None:
        """Replace the table; acceptance and costs stay, and draft steps that are candidates."""
        before = self._controls
        self.table = table
        self._first_valid = self._sequence + 1  # of the first decision in this table
        self._estimator.resize(max(table.candidates()[-1], 1))
        self._controls = {}
        for entry in table.ranges:
            known = before.get(entry.lower_bound)
            num_steps = entry.nearest(known.num_steps if known else self._num_steps)
            self._controls[entry.lower_bound] = RangeControl(
                entry, num_steps, Exploration(self._sequence), self._estimator.batch(1, 0)
            )

    def forget_draft(self) -> None:
        self._estimator.forget_draft()
        self._controls = {}
        self.reload(self.table)

    def states(self) -> tuple[RangeState, ...]:
        return tuple(self._describe(control) for control in self._controls.values())

    def _choose(self, control: RangeControl) -> tuple[int, Reason]:
        if control.probe_steps:
            control.probe_steps -= 1
            return control.probe_num_steps, Reason.PROBE
        drafts = self._estimator.acceptance.now.trials[0]
        if drafts < START_TRIALS and self._last_num_steps:
            return control.num_steps, Reason.START
        if len(control.entry.candidate_steps) == 1:
            return control.num_steps, Reason.KEEP
        estimates = self._estimate(control)
        if estimates is not control.considered:
            control.considered, control.saved_share = estimates, estimates.saved_share
            if self._confirms(control, estimates, drafts):
                self._move(control, estimates.best)
                return control.num_steps, control.reason
            if self._starts_probe(control, estimates):
                return control.probe_num_steps, Reason.PROBE
        if not control.num_steps and not control.forgone:
            control.rests_until = self._sequence + RESTING_STEPS
        return control.num_steps, Reason.KEEP

    def _confirms(self, control: RangeControl, estimates: Estimates, drafts: float) -> bool:
        """Return whether another candidate has been better by enough, for long enough."""
        present, best_rate = estimates.of(control.num_steps), estimates.best_rate
        if control.num_steps and not present.deepest:
            return best_rate > present.rate
        if self._estimator.offsets.requests_differ and not estimates.best:
            # Without draft steps nothing more is learned of these requests.
            drafts = min(drafts, OWN_MEMORY_STEPS * control.batch.size)
        gain = best_rate / present.rate - 1.0 - MIN_GAIN - DOUBT / math.sqrt(1.0 + drafts)
        steps = min(self._sequence - control.confirmed_at, HOLD_STEPS)
        control.forgone = max(control.forgone + gain * steps, 0.0)
        control.confirmed_at = self._sequence
        return gain > 0.0 and control.forgone > SWITCH_COST

    def _move(self, control: RangeControl, target: int) -> None:
        control.reason = Reason.RISE if target > control.num_steps else Reason.FALL
        if not control.num_steps:
            control.exploration.rise(self._sequence)
        elif not target:
            control.exploration.fall(self._sequence, control.batch.size)
        control.num_steps, control.forgone = target, 0.0

    def _starts_probe(self, control: RangeControl, estimates: Estimates) -> bool:
        """Probe the draft while it is not used, or a candidate whose cost is uncertain."""
        is_return, size = not control.num_steps, control.batch.size
        if is_return:
            num_steps, steps = estimates.candidates[:2][-1], return_steps(size)
            loss_s = self._loss_of_return_s(control, estimates, num_steps)
        else:
            num_steps, steps = self._uncertain(control, estimates), COST_PROBE_STEPS
            loss_s = estimates.loss(estimates.of(num_steps))
        if num_steps == control.num_steps:
            return False
        exploration, step_s = control.exploration, estimates.prefixes[0].seconds
        catching_up_s = exploration.catching_up_s(size * self._missed)
        if not exploration.grants(self._sequence, steps * loss_s, step_s, is_return, catching_up_s):
            return False
        control.probe_num_steps, control.probe_steps = num_steps, steps - 1
        return True

    def _loss_of_return_s(
        self, control: RangeControl, estimates: Estimates, num_steps: int
    ) -> float:
        """Expect what a step that probes the draft loses to the best candidate, in seconds."""
        batch, probed = control.batch, len(self._probed(control, num_steps))
        rows = self._estimator.rows(batch.size, num_steps, num_steps * probed)
        seconds = self.cost.seconds(batch.size, num_steps, batch.kv_tokens, rows)
        accepted = expected_tokens(self._estimator.acceptance.now.rates())[num_steps] - 1.0
        return max(seconds - (batch.size + probed * accepted) / estimates.best_rate, 0.0)

    def _uncertain(self, control: RangeControl, estimates: Estimates) -> int:
        """Return a candidate that may be the best one, or the present one."""
        least = estimates.best_rate * (1.0 + WORTHWHILE)
        fewer = 0
        for steps, prefix in zip(estimates.candidates, estimates.prefixes, strict=True):
            is_needed = prefix.deepest > fewer or not steps  # else fewer draft steps would run
            if is_needed and steps != control.num_steps and prefix.rate * (1.0 + OPTIMISM) > least:
                measured = self.cost.steps(control.batch.size, steps)
                if prefix.rate * (1.0 + OPTIMISM / (1.0 + measured)) > least:
                    return steps
            fewer = steps
        return control.num_steps

    def _estimate(self, control: RangeControl) -> Estimates:
        """Return the last estimates while they hold for the batch, or new ones."""
        known, candidates = control.estimates, control.entry.candidate_steps
        if known is None or not known.holds_for(control.batch, candidates):
            known = control.estimates = self._estimator.estimate(control.batch, candidates)
        return known

    def _verified(
        self, control: RangeControl, num_steps: int, reason: Reason
    ) -> tuple[int, tuple[int, ...]]:
        """Choose the verified positions of each request, and no deeper a draft than they need.

        Returns:
            The draft steps, and the positions; empty if all are verified.
        """
        groups, candidates = control.batch.groups, control.entry.candidate_steps
        if not num_steps:
            return 0, ()
        if reason is Reason.START or (reason is Reason.PROBE and not control.num_steps):
            is_start, chosen = reason is Reason.START, [0] * len(groups)
            for place in range(len(groups)) if is_start else self._probed(control, num_steps):
                chosen[place] = min(self._estimator.most_of(groups[place]), num_steps)
        else:
            least = self._estimate(control).of(num_steps).least
            chosen = self._estimator.verified(groups, num_steps, least)
            if candidates[0]:  # drafts run in any case: learn from them
                chosen = [
                    count or min(self._estimator.most_of(group), 1)
                    for count, group in zip(chosen, groups, strict=True)
                ]
        deepest = max(chosen)
        num_steps = next(steps for steps in candidates if steps >= deepest)
        return num_steps, () if chosen.count(num_steps) == len(chosen) else tuple(chosen)

    def _probed(self, control: RangeControl, num_steps: int) -> Collection[int]:
        """Choose the requests that verify drafts in a probe, others in each.

        They are as many as take the time of drafting to verify, catching up included.
        """
        size, estimator = control.batch.size, self._estimator
        if estimator.is_padded or estimator.offsets.requests_differ:
            return range(size)
        rows = estimator.rows(size, num_steps, size * num_steps)
        verifying_s = self.cost.verify(rows) - self.cost.verify(size)
        drafting_s = self.cost.drafting(size, num_steps)
        drafting_s += control.exploration.catching_up_s(size * self._missed)
        share = 1.0 if drafting_s >= verifying_s else drafting_s / verifying_s
        count = min(max(round(share * size), PROBE_DRAFTS), size)
        first = self._sequence * PROBE_DRAFTS
        return {place % size for place in range(first, first + count)}

    def _learn_cost(self, feedback: Feedback) -> float:
        """Refine the cost and return the step's time.

        The first draft after steps without one catches up: its time does not predict other steps.
        If a prefill shared the step, the expected time replaces the measured time.
        """
        steps, size, kv = feedback.decision.num_steps, feedback.batch_size, feedback.kv_tokens
        if not feedback.has_cost():
            return self.cost.seconds(size, steps, kv, feedback.rows)
        if not (steps and self._missed):
            self.cost.refine(size, steps, kv, feedback.seconds, feedback.rows)
        return feedback.seconds

    def _account(self, control: RangeControl, feedback: Feedback, seconds: float) -> None:
        """Charge a probe for what it lost to the best candidate; other steps earn credit."""
        steps = feedback.decision.num_steps
        if feedback.decision.reason is not Reason.PROBE:
            control.exploration.earn(seconds, control.saved_share if steps else 0.0)
            return
        size, tokens = feedback.batch_size, feedback.batch_size + sum(feedback.accepted)
        expected_s = self.cost.seconds(size, steps, feedback.kv_tokens, feedback.rows)
        loss_s = expected_s - tokens / self._estimate(control).best_rate
        catching_up_s = seconds - expected_s if self._missed else 0.0
        control.exploration.charge(loss_s, catching_up_s, size * self._missed)

    def _describe(self, control: RangeControl) -> RangeState:
        estimates = self._estimate(control)
        per_second = [prefix.rate for prefix in estimates.prefixes]
        return RangeState(
            control.entry.lower_bound,
            estimates.candidates,
            control.num_steps,
            control.reason,
            survival=tuple(self._estimator.acceptance.now.rates()),
            tokens_per_second=dict(zip(estimates.candidates, per_second, strict=True)),
        )
