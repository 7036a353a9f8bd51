"""When to run a depth only to learn of it: ever more rarely, within a budget of time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

# Share of the time, and of what speculation gains on depth 0, that probes may lose; and how much of
# it can be saved up.
BUDGET, GAIN_BUDGET = 0.005, 0.1
MOST_CREDIT_ROUNDS, FIRST_CREDIT_ROUNDS = 16.0, 3.0
# Rounds between two probes for a return from depth 0, per round that a probe takes: doubled each
# time, as long as nothing comes of them.
FIRST_PAUSE, LAST_PAUSE = 8, 260
# Probes of one stay after which it is no longer thought to be as short as the last one.
MOST_PROBES = 20
# Share of the time that speculation must have saved for its return to be looked for sooner.
WORTHWHILE = 0.05
# Nats for a better draft that call for another probe at once; each such probe of a stay that led
# to nothing raises them by as much, as chance alone calls too.
EVIDENCE = 1.5
# Share of the time at depth 0 that probes may lose even where there is credit for more, and how
# many more like it the credit must allow.
MOST_SHARE, RESERVE = 0.03, 2.0
# Pauses are this part of what loses least: about there a shorter one costs next to nothing (at
# 0.6 a seventh more), and a return is found sooner.
HASTE = 0.6
# A draft is behind by no more rounds than this, as requests come and go.
MISSED_ROUNDS = 128
# A return that lasted no longer or saved no more was a mistake, unless it saved what is worthwhile:
# look less often.
SHORT_ROUNDS, SLIGHT = 24, 0.02
# The first probes of a stay take two rounds, as the cost of one that catches up is not learned.
SURE_PROBES = 2
# Rounds between two probes of another depth, doubled each time, and of one of them.
OTHER_PAUSE, OTHER_ROUNDS = 24, 2
# Drafts that say enough about the first position for one probe.
PROBE_TRIALS = 8


@dataclass(slots=True)
class Pause:
    """When a thing may be probed next, in rounds; owned by `Exploration`."""

    until: int
    rounds: int


class Outlook(NamedTuple):
    """What a range's depths promise to one batch; a tuple, as one is made in every round."""

    batch_size: int
    candidates: Sequence[int]
    current: int
    rates: Sequence[float]  # tokens per second of one request, by candidate
    seconds: Sequence[float]  # of a round, by candidate
    hopes: Sequence[float]  # what `rates` may be at best, by candidate


class Exploration:
    """Grants probes to one range.

    Depth 0 shows nothing of the draft, so from there the smallest other depth is probed. From
    elsewhere, depths that look nearly as good as the best and whose cost was only ever told are.
    What a probe loses is known from its own time; the budget is a share of all time, so the loss
    is bounded whatever the estimates say.
    """

    def __init__(self, number: int) -> None:
        self._credit_s = -1.0
        self._most_s = 0.0
        self._return = Pause(number, FIRST_PAUSE)
        self._fell = number
        self._rose = number
        self._gained = 0.0  # rounds that speculation saved since then
        self._gain = 0.0  # share of the time that it saved in the last stay above, if worthwhile
        self._stay = 0  # rounds that a stay at depth 0 is thought to last
        self._patience = 1
        self._probes = 0
        self._calls = 0  # probes of this stay that evidence called for
        self._octave = 0
        self._others: dict[int, Pause] = {}
        self._missed_row_s = 0.0

    def earn(self, seconds: float, gain: float) -> None:
        """Save up a share of a round's time; `gain` is the share of it that speculation saved."""
        if self._credit_s < 0.0:
            self._credit_s = FIRST_CREDIT_ROUNDS * seconds
        self._most_s = MOST_CREDIT_ROUNDS * seconds
        self._gained += max(gain, 0.0)
        earned = (BUDGET + GAIN_BUDGET * max(gain, 0.0)) * seconds
        self._credit_s = max(min(self._credit_s + earned, self._most_s), self._credit_s)

    def charge(self, seconds: float) -> None:
        """Pay for what a probe has lost; a spike does not end exploration for long."""
        self._credit_s -= min(max(seconds, 0.0), self._most_s)

    def note_catching_up(self, seconds: float, batch_size: int, missed: int) -> None:
        """Remember what the draft's return took per row that it had missed.

        After few missed rounds the noise of a round is greater than that, and a spike would tell of
        a return so dear that none is tried again.
        """
        seen = max(seconds, 0.0) / (batch_size * min(missed, MISSED_ROUNDS))
        self._missed_row_s += 0.5 * (seen - self._missed_row_s)

    def fall(self, number: int, batch_size: int) -> None:
        """Begin a stay at depth 0."""
        self._fell = number
        self._probes = self._calls = 0
        rounds = number - self._rose
        first = FIRST_PAUSE * _probe_rounds(batch_size)
        gain = self._gained / max(rounds, 1)
        if gain > WORTHWHILE or (rounds >= SHORT_ROUNDS and gain > SLIGHT):
            self._gain = gain if gain > WORTHWHILE else 0.0
            self._stay = self._stay or rounds
        else:
            self._patience *= 2
            first = max(first, self._return.rounds // 4)
        self._return = Pause(number + first, 2 * first)

    def restart(self, number: int) -> None:
        """Probe sooner again: acceptance has changed."""
        self._return.until = min(self._return.until, number + FIRST_PAUSE)
        for pause in self._others.values():
            pause.until = min(pause.until, number + 4 * OTHER_PAUSE)

    def rise(self, number: int) -> None:
        """End a stay at depth 0 because a probe went well: look sooner the next time."""
        self._rose = number
        self._gained = 0.0
        self._stay = number - self._fell
        self._patience = 1

    def grant(
        self, number: int, outlook: Outlook, missed: int, evidence: float
    ) -> tuple[int, int] | None:
        """Return the depth to probe in round `number` and for how many rounds, or nothing.

        `missed` rounds went by without a draft; `evidence` (nats) speaks for a better draft.
        """
        octave = outlook.batch_size.bit_length()
        moved, self._octave = octave != self._octave, octave
        if outlook.current == 0:
            if evidence > EVIDENCE * (1 + self._calls) and number < self._return.until:
                self._return.until = number
                self._calls += 1
            return self._grant_return(number, outlook, missed, evidence, moved)
        return self._grant_other(number, outlook)

    def _grant_return(
        self, number: int, outlook: Outlook, missed: int, evidence: float, moved: bool
    ) -> tuple[int, int] | None:
        others = [place for place, steps in enumerate(outlook.candidates) if steps]
        if not others:
            return None
        rounds = _probe_rounds(outlook.batch_size)
        if self._probes < SURE_PROBES:
            rounds = max(rounds, OTHER_ROUNDS)
        if moved:
            self._return = Pause(
                min(self._return.until, number + FIRST_PAUSE), FIRST_PAUSE * rounds
            )
        if number < self._return.until:
            return None
        behind_s = self._missed_row_s * outlook.batch_size * min(missed, MISSED_ROUNDS)
        loss_s = rounds * _loss(outlook, others[0])
        price_s = loss_s + behind_s
        # What catching up takes may be misjudged: long overdue, it is found out and then paid.
        asked_s = loss_s if number > self._return.until + LAST_PAUSE else price_s
        if self._credit_s < min(RESERVE * asked_s, self._most_s):
            return None
        dear = min(int(price_s / (MOST_SHARE * outlook.seconds[0])), 2 * LAST_PAUSE)
        self._probes += 1
        if self._probes % MOST_PROBES == 0:
            self._patience *= 2
        longest = self._longest_pause(rounds, price_s / outlook.seconds[0])
        _lengthen(self._return, number, longest)
        self._return.until = max(self._return.until, number + dear)
        return outlook.candidates[others[0]], rounds

    def _longest_pause(self, rounds: int, price_rounds: float) -> int:
        """Weigh what probes cost against what comes late: √(2 · price · stay / gain), hastily.

        `rounds` are those of one probe. Without a gain to expect it is the last pause.
        """
        last = LAST_PAUSE * max(rounds // 4, 1)
        if not self._gain:
            return last
        best = HASTE * math.sqrt(2.0 * price_rounds * self._stay / self._gain)
        return min(self._patience * max(int(best), FIRST_PAUSE), last)

    def _grant_other(self, number: int, outlook: Outlook) -> tuple[int, int] | None:
        best = max(outlook.rates)
        for place, steps in enumerate(outlook.candidates):
            if steps == outlook.current or outlook.hopes[place] < best:
                continue
            pause = self._others.setdefault(steps, Pause(number, OTHER_PAUSE))
            if number < pause.until:
                continue
            if self._credit_s >= OTHER_ROUNDS * _loss(outlook, place):
                _lengthen(pause, number, 1 << 20)
                pause.rounds *= 2
                return steps, OTHER_ROUNDS
        return None


def _probe_rounds(batch_size: int) -> int:
    return -(-PROBE_TRIALS // batch_size)


def _loss(outlook: Outlook, place: int) -> float:
    """Seconds that a round at a candidate loses to the best one."""
    return outlook.seconds[place] * max(1.0 - outlook.rates[place] / max(outlook.rates), 0.0)


def _lengthen(pause: Pause, number: int, longest: int) -> None:
    pause.until = number + pause.rounds
    pause.rounds = min(2 * pause.rounds, longest)
