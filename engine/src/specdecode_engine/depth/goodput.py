"""The depth that is expected to emit the most tokens per second."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from specdecode_engine.depth.change import ChangeDetector
from specdecode_engine.depth.confirmation import Confirmation
from specdecode_engine.depth.cost import CostModel
from specdecode_engine.depth.decision import Decision, Feedback, RangeState, Reason
from specdecode_engine.depth.exploration import Exploration, Outlook
from specdecode_engine.depth.ranges import BatchRange, DepthTable
from specdecode_engine.depth.regimes import Regimes
from specdecode_engine.depth.routing import BandRouting, Routing
from specdecode_engine.depth.survival import Rates, count_round, expected_tokens

# Drafts that count in full: those of the last ones and of the last rounds.
MEMORY_TRIALS, MEMORY_ROUNDS = 1000.0, 150.0
# How many trials a position's estimate leans on the position before, a range's on all ranges.
LEAN_POSITION, LEAN_RANGE = 6.0, 64.0
# Drafts before the first choice in a range where nothing is known from others.
START_TRIALS = 6.0
# By how much a position of one trial may be better than expected; with more, less.
HOPE = 0.5
# By how much a depth may be cheaper that was not run this often at about the batch size.
# Twice a table's error, more for depth 0: to have measured that is a promise.
COST_HOPE, PLAIN_HOPE, COST_TRIALS = 0.3, 0.55, 4
# By how much depth 0 may be cheaper than few rounds say, by the root of their number: an error that
# no other depth's rounds mend, and speculation is measured by it.
PLAIN_DOUBT = 0.3
# How much better than the best a depth may have to be to be worth a probe.
LEAST_HOPE = 1.05
ROUNDS_TO_LOOK = 8
# What is known fades by this share with each round at depth 0, down to a few trials.
FADE_AT_ZERO, LEAST_TRIALS = 0.98, 24.0
# Drafts of a probe after which it ends if none was accepted more than expected.
HOPELESS_DRAFTS = 3


@dataclass(slots=True)
class RangePlay:
    """What goes on in one range; owned by `GoodputDepth`."""

    entry: BatchRange
    rates: Rates
    current: int
    reason: Reason
    exploration: Exploration
    detector: ChangeDetector = field(default_factory=ChangeDetector)
    confirmation: Confirmation = field(default_factory=Confirmation)
    probe_depth: int = 0
    probe_rounds: int = 0  # that are still to run
    probe_drafts: int = 0  # of which something was heard
    batch_size: int = 1  # of the last decision
    kv_tokens: int = 0
    gain: float = 0.0  # share of the time that speculation saves, as expected last
    next_look: int = 0  # round in which to think of a probe again


class GoodputDepth:
    """Chooses by E[tokens] / seconds: acceptance by position, cost by batch size and depth.

    Args:
        table: candidates by batch size; depth 0 competes wherever it is listed.
        cost: what rounds take; refined here with every round.
        num_steps: the depth until something is known.
        routing: which range decides; with a band, so a size that goes back and forth stays.
    """

    def __init__(
        self,
        table: DepthTable,
        cost: CostModel,
        num_steps: int,
        routing: Routing | None = None,
    ) -> None:
        self.table = table
        self.cost = cost
        self._num_steps = num_steps
        self.routing = routing or BandRouting()
        self._number = 0
        self._first_number = 1
        self._slot: int | None = None
        self._deepest = table.candidates()[-1]
        self._regimes = Regimes(max(self._deepest, 1), LEAN_POSITION)
        self._plays = {entry.lower_bound: self._begin(entry) for entry in table.ranges}
        self._last_depth = num_steps
        self._missed = 0

    def decide(self, batch_size: int, kv_tokens: int) -> Decision:
        """Compare the candidates of the range that the batch is routed to."""
        self._number += 1
        entry = self.routing.route(self.table, batch_size, self._slot)
        self._slot = entry.lower_bound
        play = self._plays[self._slot]
        play.batch_size, play.kv_tokens = batch_size, kv_tokens
        if self._probes_on(play):
            return Decision(play.probe_depth, self._slot, self._number, Reason.PROBE)
        if self._regimes.now.trials[0] < START_TRIALS and self._last_depth:
            return Decision(play.current, self._slot, self._number, Reason.START)
        return self._choose(play)

    def observe(self, feedback: Feedback) -> None:
        """Learn rates from the accepted drafts and cost from the time."""
        decision = feedback.decision
        play = self._plays.get(decision.slot)
        if play is None or not self._first_number <= decision.sequence <= self._number:
            return
        if decision.num_steps and feedback.accepted:
            self._learn(play, feedback.accepted, decision.num_steps)
        self._time(play, feedback)

    def reload(self, table: DepthTable) -> None:
        """Take up another table; rates and costs stay, and depths where they are candidates."""
        old = self._plays
        self.table = table
        self._first_number = self._number + 1
        self._deepest = table.candidates()[-1]
        self._regimes.resize(max(self._deepest, 1))
        self._plays = {}
        for entry in table.ranges:
            play = self._begin(entry)
            before = old.get(entry.lower_bound)
            if before is not None:
                before.rates.resize(max(self._deepest, 1))
                play.rates = before.rates
                play.current = entry.nearest(before.current)
            self._plays[entry.lower_bound] = play

    def states(self) -> tuple[RangeState, ...]:
        """Describe every range, as for the batch that it decided for last."""
        return tuple(self._describe(play) for play in self._plays.values())

    def _begin(self, entry: BatchRange) -> RangePlay:
        rates = Rates(max(self._deepest, 1), LEAN_POSITION)
        start = entry.nearest(self._num_steps)
        return RangePlay(entry, rates, start, Reason.START, Exploration(self._number))

    def _probes_on(self, play: RangePlay) -> bool:
        """Go on with a probe, but not with one for a return that only met refusals."""
        if not play.probe_rounds:
            return False
        is_hopeless = play.probe_drafts >= HOPELESS_DRAFTS and not play.detector.evidence_of_rise
        if play.current == 0 and is_hopeless:
            play.probe_rounds = 0
            return False
        play.probe_rounds -= 1
        return True

    def _choose(self, play: RangePlay) -> Decision:
        outlook = self._outlook(play)
        rates, candidates = outlook.rates, outlook.candidates
        best = max(rates)
        play.gain = 1.0 - rates[0] / best if not candidates[0] else 0.0
        current = candidates.index(play.current)
        drafts = self._regimes.now.trials[0]
        if play.confirmation.confirms(candidates, rates, current, drafts):
            target = candidates[rates.index(best)]
            play.reason = Reason.RISE if target > play.current else Reason.FALL
            if target and not play.current:
                play.exploration.rise(self._number)
            elif not target:
                play.exploration.fall(self._number, play.batch_size)
            play.current = target
            return Decision(target, play.entry.lower_bound, self._number, play.reason)
        probe = self._probe(play, outlook)
        if probe is not None:
            play.probe_depth, play.probe_rounds = probe[0], probe[1] - 1
            play.probe_drafts = 0
            return Decision(play.probe_depth, play.entry.lower_bound, self._number, Reason.PROBE)
        return Decision(play.current, play.entry.lower_bound, self._number, Reason.KEEP)

    def _probe(self, play: RangePlay, outlook: Outlook) -> tuple[int, int] | None:
        """Ask whether to probe; not in every round, as looking out for hopes takes time."""
        if play.current and self._number < play.next_look:
            return None
        play.next_look = self._number + ROUNDS_TO_LOOK
        evidence = play.detector.evidence_of_rise
        hopeful = outlook._replace(hopes=self._hopes(play, outlook))
        return play.exploration.grant(self._number, hopeful, self._missed, evidence)

    def _hopes(self, play: RangePlay, outlook: Outlook) -> list[float]:
        """Rates if positions and costs of which little is known are better than expected."""
        known = self._regimes.now.trials
        estimate = self._estimate(play)
        tokens = expected_tokens(
            min(rate + HOPE / (count + 1.0) ** 0.5, 1.0)
            for rate, count in zip(estimate, known, strict=True)
        )
        hopes = []
        for steps, seconds in zip(outlook.candidates, outlook.seconds, strict=True):
            hope = _cost_hope(steps, self.cost.trials(play.batch_size, steps))
            hopes.append(tokens[steps] / seconds * (1.0 + hope) / LEAST_HOPE)
        return hopes

    def _outlook(self, play: RangePlay) -> Outlook:
        candidates = play.entry.candidate_steps
        tokens = expected_tokens(self._estimate(play))
        surface = self.cost.surface(play.batch_size, self._deepest)
        kv_s = self.cost.seconds_per_kv_token
        seconds = [surface[steps] + kv_s(steps) * play.kv_tokens for steps in candidates]
        rates = [tokens[steps] / time for steps, time in zip(candidates, seconds, strict=True)]
        return Outlook(play.batch_size, candidates, play.current, rates, seconds, ())

    def _estimate(self, play: RangePlay) -> list[float]:
        wider = self._regimes.now.conditional()
        if len(self._plays) == 1:
            return wider
        return play.rates.leaning_on(wider, LEAN_RANGE)

    def _learn(self, play: RangePlay, accepted: Sequence[int], num_steps: int) -> None:
        trials, successes = count_round(accepted, num_steps)
        changed = []
        if self._regimes.now.trials[0] >= START_TRIALS:
            changed = play.detector.since_change(self._estimate(play), trials, successes)
        if self._missed:
            left = self._regimes.now.trials[0] * FADE_AT_ZERO**self._missed
            self._regimes.now.fade(max(left, LEAST_TRIALS))
        if not play.current and self._regimes.recalls((trials, successes)):
            play.detector.restart()
            play.rates.fade(LEAN_RANGE)
        drafts = len(accepted)
        keep = 1.0 - drafts / (MEMORY_TRIALS + MEMORY_ROUNDS * drafts)
        self._regimes.now.add(keep, trials, successes)
        if len(self._plays) > 1:
            play.rates.add(keep, trials, successes)
        if changed:
            play.exploration.restart(self._number)
            for other in self._plays.values():
                other.rates.fade(LEAN_RANGE)
            self._regimes.change(changed)
            play.rates.restart(changed)

    def _time(self, play: RangePlay, feedback: Feedback) -> None:
        """Refine the cost, but not by a round in which the draft caught up or prompts took part."""
        steps, size = feedback.decision.num_steps, feedback.batch_size
        if not feedback.is_alone:
            expected = self.cost.seconds(size, steps, feedback.kv_tokens)
            feedback = feedback._replace(seconds=expected)
        elif steps and self._missed:
            expected = self.cost.seconds(size, steps, feedback.kv_tokens)
            play.exploration.note_catching_up(feedback.seconds - expected, size, self._missed)
        else:
            self.cost.refine(size, steps, feedback.kv_tokens, feedback.seconds)
        self._account(play, feedback)
        self._missed = 0 if steps else self._missed + 1
        self._last_depth = steps

    def _account(self, play: RangePlay, feedback: Feedback) -> None:
        """Let a probe pay for what it lost to the best depth, and other rounds earn."""
        steps = feedback.decision.num_steps
        if feedback.decision.reason is not Reason.PROBE:
            play.exploration.earn(feedback.seconds, play.gain if steps else 0.0)
            return
        play.probe_drafts += feedback.batch_size
        outlook = self._outlook(play)
        place = outlook.candidates.index(steps)
        seconds = feedback.seconds if self._missed else outlook.seconds[place]
        tokens = outlook.rates[place] * outlook.seconds[place]
        play.exploration.charge(seconds - tokens / max(outlook.rates))

    def _describe(self, play: RangePlay) -> RangeState:
        outlook = self._outlook(play)
        per_second = [play.batch_size * rate for rate in outlook.rates]
        return RangeState(
            play.entry.lower_bound,
            play.entry.candidate_steps,
            play.current,
            play.reason,
            survival=tuple(self._estimate(play)),
            tokens_per_second=dict(zip(play.entry.candidate_steps, per_second, strict=True)),
        )


def _cost_hope(steps: int, trials: int) -> float:
    """By how much a depth may be cheaper than it seems after so many rounds at about the size."""
    if trials < COST_TRIALS:
        return COST_HOPE if steps else PLAIN_HOPE
    return 0.0 if steps else PLAIN_DOUBT / trials**0.5
