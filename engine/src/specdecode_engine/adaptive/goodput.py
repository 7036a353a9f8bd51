"""Policy goodput: the draft steps with the most expected tokens per second."""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from specdecode_engine.adaptive.acceptance import (
    AcceptanceModel,
    count_by_position,
    expected_tokens,
)
from specdecode_engine.adaptive.cost import CostModel, CostPoint, Estimates, chain_tokens
from specdecode_engine.adaptive.exploration import Exploration
from specdecode_engine.adaptive.policy import Decision, Feedback, RangeState, Reason
from specdecode_engine.adaptive.step_limit import StepLimit
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
# How much better than the best candidate an uncertain one may have to be to be probed.
MIN_PROMISE = 0.05
COST_PROBE_STEPS = 2  # of such a probe; a step that chunks of prompts share shows no cost
ANSWER_KEPT = 31 / 32  # of older answers in the mean of their lengths, when one has ended
# Steps without a draft that a draft catches up on at most, as requests come and go.
MAX_MISSED_STEPS = 128
# Steps between two estimates, which would take a noticeable share of the time of a small model's
# step, at 0 draft steps and where nothing was proposed: nothing is learned about the draft there. A
# new batch size and a draft end the rest.
RESTING_STEPS = 7


@dataclass(slots=True)
class Learned:
    """What steps have shown; ranges that verify the same share of their drafts share it.

    Tokens that a step does not verify count as not accepted: what a range expects of its draft
    steps are the tokens that it gets.
    """

    acceptance: AcceptanceModel
    cost: CostModel


@dataclass(slots=True)
class RangeControl:
    """The present choice of one batch range; owned by `GoodputPolicy`."""

    entry: BatchRange
    learned: Learned
    num_steps: int
    exploration: Exploration
    reason: Reason = Reason.START
    probe_num_steps: int = 0
    probe_steps: int = 0  # remaining steps of the present probe
    batch_size: int = 1  # of the last decision
    kv_tokens: int = 0
    forgone: float = 0.0  # by staying, in tokens of a step
    saved_share: float = 0.0  # of the time, by speculation, as expected last
    rests_until: int = 0  # sequence number of the last decision that repeats the draft steps

    def is_resting(self, sequence: int) -> bool:
        """Whether a decision repeats the draft steps without an estimate."""
        return self.rests_until - RESTING_STEPS < sequence <= self.rests_until


class GoodputPolicy:
    """Chooses by E[tokens] / seconds: acceptance by position, cost by batch size and draft steps.

    Where the table limits a step's time, candidates that are expected to exceed the limit do not
    compete and are not probed. If all of them exceed it, the fastest is chosen.

    Args:
        table: candidates by batch range; 0 draft steps compete wherever they are listed.
        cost: seconds of steps that verify all that they draft; refined here by every step.
        points: measured steps that verify less.
        drafted: returns the tokens that a request drafts, by draft steps.
        num_steps: draft steps until something is known.
        routing: which range decides; with hysteresis by default.
    """

    def __init__(
        self,
        table: RangeTable,
        cost: CostModel,
        num_steps: int,
        routing: Routing | None = None,
        points: Iterable[CostPoint] = (),
        drafted: Callable[[int], int] = chain_tokens,
    ) -> None:
        whole = Learned(AcceptanceModel(positions=1), cost)
        self._learned: dict[int | None, Learned] = {None: whole}  # by tokens that are verified
        self._points = tuple(points)
        self._drafted = drafted
        self.limit = StepLimit()
        self._prompt_limit = StepLimit()  # of steps that chunks of prompts share: less is known
        self._prefill_s: dict[int, float] = {}  # expected of these, by sequence number
        self.routing = routing or MarginRouting()
        self._num_steps = num_steps
        self._sequence = 0
        self._range_start: int | None = None
        self._ended = self._ended_tokens = 0.0  # answers and what they have decoded, decayed
        self._controls: dict[int, RangeControl] = {}
        self._last_num_steps = num_steps
        self._missed = 0  # steps without a draft that the draft has not caught up on
        self._is_idle = False  # whether nothing was proposed in the last step, as NGRAM may do
        self.reload(table)

    @property
    def cost(self) -> CostModel:
        """Seconds of steps that verify all that they draft."""
        return self._learned[None].cost

    def decide(self, batch_size: int, kv_tokens: int, prefill_s: float = 0.0) -> Decision:
        self._sequence += 1
        entry = self.routing.route(self.table, batch_size, self._range_start)
        self._range_start = entry.lower_bound
        control = self._controls[entry.lower_bound]
        control.kv_tokens = kv_tokens
        if batch_size == control.batch_size and control.is_resting(self._sequence):
            choice = control.num_steps, Reason.KEEP
        else:
            control.rests_until = 0
            if batch_size.bit_length() != control.batch_size.bit_length():
                control.exploration.restart(self._sequence, batch_size)
            control.batch_size = batch_size
            choice = self._choose(control, is_alone=not prefill_s)
        if self.limit.max_step_s < math.inf:
            choice = self._within_limit(control, choice, prefill_s)
        verified = entry.verify_tokens
        return Decision(choice[0], entry.lower_bound, self._sequence, choice[1], verified)

    def prefill_room_s(self, batch_size: int, kv_tokens: int) -> float:
        """Return what the limit leaves above the fastest step; no bound where that exceeds it."""
        control = self._controls[self.table.range_of(batch_size).lower_bound]
        cost = control.learned.cost
        if not cost.is_measured or self.limit.max_step_s == math.inf:
            return math.inf
        fastest_s = cost.seconds(batch_size, control.entry.candidate_steps[0], kv_tokens)
        if fastest_s > self.limit.max_step_s:
            return math.inf
        return max(self._prompt_limit.expected_s - fastest_s, 0.0)

    def observe(self, feedback: Feedback) -> None:
        decision = feedback.decision
        prefill_s = self._prefill_s.pop(decision.sequence, 0.0)
        for tokens in feedback.ended:
            self._ended = ANSWER_KEPT * self._ended + 1.0
            self._ended_tokens = ANSWER_KEPT * self._ended_tokens + tokens
        control = self._controls.get(decision.range_start)
        if control is None or not self._first_valid <= decision.sequence <= self._sequence:
            return
        self._is_idle = decision.num_steps > 0 and feedback.is_idle
        if self._is_idle and not prefill_s and decision.reason is not Reason.PROBE:
            self._missed, self._last_num_steps = 0, decision.num_steps
            return
        if control.num_steps:
            control.rests_until = 0
        if decision.num_steps and (feedback.accepted or feedback.partial):
            counts = count_by_position(feedback.accepted, decision.num_steps, feedback.partial)
            if control.learned.acceptance.learn(counts, is_probe=not control.num_steps):
                control.exploration.restart(self._sequence, feedback.batch_size)
        if control.is_resting(decision.sequence):
            if feedback.has_cost():
                control.exploration.earn(feedback.seconds, saved_share=0.0)
        else:
            seconds = self._learn_cost(control.learned.cost, feedback, prefill_s)
            self._account(control, feedback, seconds)
        self._missed = 0 if decision.num_steps else min(self._missed + 1, MAX_MISSED_STEPS)
        self._last_num_steps = decision.num_steps

    def reload(self, table: RangeTable) -> None:
        """Replace the table; acceptance and costs stay, and draft steps that are candidates."""
        before = self._controls
        self.table = table
        self.limit.set(table.max_step_s)
        self._prompt_limit.set(table.max_step_s)
        self._prefill_s.clear()
        self._first_valid = self._sequence + 1  # of the first decision in this table
        self._most_steps = max(table.candidates()[-1], 1)
        self._controls = {}
        for entry in table.ranges:
            known = before.get(entry.lower_bound)
            num_steps = entry.nearest(known.num_steps if known else self._num_steps)
            learned = self._learned_of(entry.verify_tokens)
            control = RangeControl(entry, learned, num_steps, Exploration(self._sequence))
            self._controls[entry.lower_bound] = control

    def _learned_of(self, verify_tokens: int | None) -> Learned:
        """Return what is known of ranges that verify so much, of their steps that draft more."""
        learned = self._learned.get(verify_tokens)
        if learned is None:
            assert verify_tokens is not None
            points = [one for one in self._points if one.verify_tokens == verify_tokens]
            cost = self.cost.limited(verify_tokens, points, self._drafted)
            learned = self._learned[verify_tokens] = Learned(AcceptanceModel(positions=1), cost)
        learned.acceptance.resize(self._most_steps)
        return learned

    def forget_draft(self) -> None:
        for learned in self._learned.values():
            learned.acceptance = AcceptanceModel(positions=1)
        self._controls = {}
        self.reload(self.table)

    def states(self) -> tuple[RangeState, ...]:
        return tuple(self._describe(control) for control in self._controls.values())

    def _choose(self, control: RangeControl, *, is_alone: bool) -> tuple[int, Reason]:
        if control.probe_steps:
            control.probe_steps -= 1
            return control.probe_num_steps, Reason.PROBE
        drafts = control.learned.acceptance.now.trials[0]
        if drafts < START_TRIALS and self._last_num_steps:
            return control.num_steps, Reason.START
        if len(control.entry.candidate_steps) == 1:
            return control.num_steps, Reason.KEEP
        estimates = self._estimate(control, self.limit.expected_s)
        rates = estimates.rates
        best = max(rates)
        control.saved_share = 1.0 - rates[0] / best if not estimates.candidates[0] else 0.0
        if control.num_steps > estimates.candidates[-1]:
            self._move(control, estimates.candidates[rates.index(best)])
            control.reason = Reason.LATENCY
            return control.num_steps, Reason.LATENCY
        if self._confirms(control, estimates, drafts):
            self._move(control, estimates.candidates[rates.index(best)])
            return control.num_steps, control.reason
        if (is_alone or not control.num_steps) and self._starts_probe(control, estimates):
            return control.probe_num_steps, Reason.PROBE
        if not control.forgone and (self._is_idle or not control.num_steps):
            control.rests_until = self._sequence + RESTING_STEPS
        return control.num_steps, Reason.KEEP

    def _within_limit(
        self, control: RangeControl, choice: tuple[int, Reason], prefill_s: float
    ) -> tuple[int, Reason]:
        """Replace draft steps that this step's limit does not allow by the best that it does."""
        cost = control.learned.cost
        if not cost.is_measured:
            return control.entry.candidate_steps[0], Reason.START
        num_steps, size = choice[0], control.batch_size
        limit_s, catching_up_s = self.limit.expected_s, 0.0
        if prefill_s:
            self._prefill_s[self._sequence] = prefill_s
            limit_s = self._prompt_limit.expected_s - prefill_s
        is_unbounded = self.limit.takes_catching_up(self._sequence)
        if self._missed and not is_unbounded:
            catching_up_s = control.exploration.catching_up_s(size * self._missed)
        step_s = cost.seconds(size, num_steps, control.kv_tokens)
        if step_s > limit_s - (catching_up_s if num_steps else 0.0):
            estimates = self._estimate(control, limit_s - catching_up_s)
            num_steps = estimates.candidates[estimates.rates.index(max(estimates.rates))]
            fastest_s = estimates.seconds[0] + (catching_up_s if estimates.candidates[0] else 0.0)
            is_reachable = fastest_s <= self.limit.max_step_s
            choice = num_steps, Reason.LATENCY if is_reachable else Reason.UNREACHABLE
        if num_steps and self._missed and is_unbounded:
            self.limit.catch_up(self._sequence)
        return choice

    def _confirms(self, control: RangeControl, estimates: Estimates, drafts: float) -> bool:
        """Return whether another candidate has been better by enough, for long enough."""
        current = estimates.candidates.index(control.num_steps)
        others = (rate for index, rate in enumerate(estimates.rates) if index != current)
        gain = max(others, default=0.0) / estimates.rates[current] - 1.0
        gain -= MIN_GAIN + DOUBT / math.sqrt(1.0 + drafts)
        control.forgone = max(control.forgone + gain, 0.0)
        return gain > 0.0 and control.forgone > SWITCH_COST

    def _move(self, control: RangeControl, target: int) -> None:
        control.reason = Reason.RISE if target > control.num_steps else Reason.FALL
        if not control.num_steps:
            control.exploration.rise(self._sequence)
        elif not target:
            control.exploration.fall(self._sequence, control.batch_size)
        control.num_steps, control.forgone = target, 0.0

    def _starts_probe(self, control: RangeControl, estimates: Estimates) -> bool:
        """Probe the draft while it is not used, or a candidate whose cost is uncertain."""
        is_return = not control.num_steps
        if is_return:
            index, steps = min(1, len(estimates.candidates) - 1), 1
            loss_s = estimates.refusal(index)
        else:
            index, steps = self._uncertain(control, estimates), COST_PROBE_STEPS
            loss_s = steps * estimates.loss(index)
        num_steps = estimates.candidates[index]
        if num_steps == control.num_steps:
            return False
        exploration = control.exploration
        catching_up_s = exploration.catching_up_s(control.batch_size * self._missed)
        step_s = estimates.seconds[0]
        if not exploration.grants(self._sequence, loss_s, step_s, is_return, catching_up_s):
            return False
        control.probe_num_steps, control.probe_steps = num_steps, steps - 1
        return True

    def _uncertain(self, control: RangeControl, estimates: Estimates) -> int:
        """Return a candidate that may be the best one, or the present one."""
        least = max(estimates.rates) * (1.0 + MIN_PROMISE)
        for index, (steps, rate) in enumerate(
            zip(estimates.candidates, estimates.rates, strict=True)
        ):
            if steps != control.num_steps and rate * (1.0 + OPTIMISM) > least:
                measured = control.learned.cost.steps(control.batch_size, steps)
                if rate * (1.0 + OPTIMISM / (1.0 + measured)) > least:
                    return index
        return estimates.candidates.index(control.num_steps)

    def _estimate(self, control: RangeControl, limit_s: float = math.inf) -> Estimates:
        """Estimate the candidates whose step takes `limit_s` at most, one at least."""
        candidates = control.entry.candidate_steps
        answer_tokens = self._ended_tokens / self._ended if self._ended else math.inf
        learned = control.learned
        tokens = expected_tokens(learned.acceptance.now.rates(), answer_tokens)
        surface = learned.cost.surface(control.batch_size, self._most_steps)
        kv_s = learned.cost.seconds_per_kv_token
        seconds = [surface[steps] + kv_s(steps) * control.kv_tokens for steps in candidates]
        if limit_s < seconds[-1]:
            count = max(bisect_right(seconds, limit_s), 1)
            candidates, seconds = candidates[:count], seconds[:count]
        rates = [tokens[steps] / time for steps, time in zip(candidates, seconds, strict=True)]
        return Estimates(candidates, rates, seconds)

    def _learn_cost(self, cost: CostModel, feedback: Feedback, prefill_s: float) -> float:
        """Refine the cost and return the step's time.

        The first draft after steps without one catches up: its time does not predict other steps.
        If a prefill shared the step, the expected time replaces the measured time.
        """
        steps, size, kv = feedback.decision.num_steps, feedback.batch_size, feedback.kv_tokens
        if not feedback.has_cost():
            expected_s = cost.seconds(size, steps, kv)
            if prefill_s and expected_s + prefill_s <= self.limit.max_step_s:
                self._prompt_limit.observe(expected_s + prefill_s, feedback.gap_s)
            return expected_s
        if not (steps and self._missed):
            if self.limit.max_step_s < math.inf and cost.is_measured:
                self.limit.observe(cost.seconds(size, steps, kv), feedback.gap_s)
            cost.refine(size, steps, kv, feedback.seconds)
        return feedback.seconds

    def _account(self, control: RangeControl, feedback: Feedback, seconds: float) -> None:
        """Charge a probe for what it lost to the best candidate; other steps earn credit."""
        steps = feedback.decision.num_steps
        if feedback.decision.reason is not Reason.PROBE:
            control.exploration.earn(seconds, control.saved_share if steps else 0.0)
            return
        step_s = control.learned.cost.seconds(control.batch_size, steps, control.kv_tokens)
        estimates = self._estimate(control, max(self.limit.expected_s, step_s))
        index = estimates.candidates.index(steps)
        catching_up_s = seconds - estimates.seconds[index] if self._missed else 0.0
        missed_rows = feedback.batch_size * self._missed
        accepted = feedback.accepted if not control.num_steps else ()
        loss_s = estimates.loss_of(index, accepted) if accepted else estimates.loss(index)
        control.exploration.charge(loss_s, catching_up_s, missed_rows)
        if not control.num_steps:
            self._extend_probe(control, estimates, index)

    def _extend_probe(self, control: RangeControl, estimates: Estimates, index: int) -> None:
        """Continue with the next larger candidate while the draft looks better and credit lasts."""
        continues = control.learned.acceptance.detector.is_rising() and control.exploration.affords(
            0.0
        )
        control.probe_steps = int(continues)
        if continues:
            larger = min(index + 1, len(estimates.candidates) - 1)
            control.probe_num_steps, control.rests_until = estimates.candidates[larger], 0

    def _describe(self, control: RangeControl) -> RangeState:
        estimates = self._estimate(control)
        per_second = [control.batch_size * rate for rate in estimates.rates]
        return RangeState(
            control.entry.lower_bound,
            estimates.candidates,
            control.num_steps,
            control.reason,
            survival=tuple(control.learned.acceptance.now.rates()),
            tokens_per_second=dict(zip(estimates.candidates, per_second, strict=True)),
        )
