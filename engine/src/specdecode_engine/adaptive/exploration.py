"""When to probe: to run draft steps only to measure the draft, within a time budget.

Without draft steps nothing is learned about the draft, so the smallest other candidate is probed.
A probe is one step, and continues while its drafts are evidence of better acceptance, each time
with the next larger candidate: a useless draft mostly costs one step (data-efficient detection of a
change, Banerjee and Veeravalli, Sequential Analysis 31, 2012).

The interval between two probes doubles up to an optimum: with probes that cost c every P seconds, a
stay of D seconds at 0 draft steps costs c·D/P, and the return, which then gains the share g, comes
P/2 late on average. The sum is least at P = √(2·c·D/g).
"""

import math

# Budget of probes: share of all time, and share of the time that speculation saves.
BUDGET, SAVED_BUDGET = 0.005, 0.1
# Limit of the credit for probes, in steps; a range starts with a quarter of it.
MAX_CREDIT_STEPS, FIRST_CREDIT_STEPS = 16.0, 4.0
# Missed rows whose time counts as much as what earlier probes have shown: few show mostly noise.
CATCH_UP_ROWS = 64
# Steps between two probes: the first interval, in drafts and in steps at least, and the longest.
FIRST_DRAFTS, FIRST_INTERVAL, LAST_INTERVAL = 64, 8, 260
# Shorter than the optimum is better than longer: the loss is nearly the same, the return sooner.
PROBE_INTERVAL_SCALE = 0.6
# Share of the time that speculation must have saved for its return to be worth looking for.
WORTHWHILE = 0.05


class Exploration:
    """Grants probes to one batch range while it runs without draft steps.

    The loss of a probe is taken from a credit that grows with time, so it is bounded whatever the
    estimates are.
    """

    def __init__(self, sequence: int) -> None:
        self._credit_s: float | None = None
        self._max_credit_s = 0.0
        self._first_interval = self._interval = FIRST_INTERVAL
        self._next_probe = self._fell = self._rose = sequence
        self._saved_steps = 0.0  # since speculation began, in steps
        self._saved_share = 0.0  # of the last stay with speculation, if it was worthwhile
        self._stay = 0  # steps of the last stay without
        self._catch_up_row_s = 0.0  # seconds of a missed row, as seen last

    def earn(self, seconds: float, saved_share: float) -> None:
        """Add a share of a step's time to the credit; speculation saved `saved_share` of it."""
        saved = max(saved_share, 0.0)
        self._max_credit_s = MAX_CREDIT_STEPS * seconds
        if self._credit_s is None:
            self._credit_s = FIRST_CREDIT_STEPS * seconds
        self._saved_steps += saved
        earned = self._credit_s + (BUDGET + SAVED_BUDGET * saved) * seconds
        self._credit_s = max(min(earned, self._max_credit_s), self._credit_s)

    def charge(self, loss_s: float, catching_up_s: float, missed_rows: int) -> None:
        """Charge a probe, or credit a gain; a spike does not stop exploration for long."""
        lost_s = min(loss_s + catching_up_s, self._max_credit_s)
        self._credit_s = min((self._credit_s or 0.0) - lost_s, self._max_credit_s)
        if missed_rows:
            seen_s = max(catching_up_s, 0.0) / missed_rows
            weight = missed_rows / (missed_rows + CATCH_UP_ROWS)
            self._catch_up_row_s += weight * (seen_s - self._catch_up_row_s)

    def catching_up_s(self, missed_rows: int) -> float:
        """Expected seconds of catching up on rows that were decoded without a draft."""
        return self._catch_up_row_s * missed_rows

    def fall(self, sequence: int, batch_size: int) -> None:
        """Begin a stay without draft steps."""
        share = self._saved_steps / max(sequence - self._rose, 1)
        self._saved_share = share if share > WORTHWHILE else 0.0
        self._fell = sequence
        self.restart(sequence, batch_size)

    def rise(self, sequence: int) -> None:
        self._stay = sequence - self._fell
        self._rose = sequence
        self._saved_steps = 0.0

    def restart(self, sequence: int, batch_size: int) -> None:
        """Probe soon again, as acceptance or the batch size has changed."""
        self._first_interval = self._interval = max(FIRST_DRAFTS // batch_size, FIRST_INTERVAL)
        self._next_probe = min(self._next_probe, sequence + self._interval)

    def affords(self, loss_s: float) -> bool:
        """Return whether the credit covers a loss."""
        return (self._credit_s or 0.0) >= min(loss_s, self._max_credit_s)

    def grants(
        self, sequence: int, loss_s: float, step_s: float, is_return: bool, catching_up_s: float = 0
    ) -> bool:
        """Return whether to probe now, at an expected loss, where a step takes `step_s`.

        The cost of catching up may be wrong: a probe that is long overdue runs anyway, measures it
        and is charged afterwards. Only probes for a return from 0 draft steps keep an interval:
        others stop when costs become certain.
        """
        is_overdue = sequence > self._next_probe + LAST_INTERVAL
        asked_s = loss_s if is_overdue else loss_s + catching_up_s
        if not self.affords(asked_s):
            return False
        if is_return:
            if sequence < self._next_probe:
                return False
            self._next_probe = sequence + self._interval
            self._interval = min(2 * self._interval, self._longest_interval(loss_s / step_s))
        return True

    def _longest_interval(self, loss_steps: float) -> int:
        if not self._saved_share:
            return LAST_INTERVAL
        best = PROBE_INTERVAL_SCALE * math.sqrt(2.0 * loss_steps * self._stay / self._saved_share)
        return min(max(int(best), self._first_interval), LAST_INTERVAL)
