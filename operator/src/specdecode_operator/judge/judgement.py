"""From what was found to a judgement: one order of questions for both arrangements.

Every verdict contains what it rests on, and what is still missing before one.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from specdecode_operator.judge.evidence import Stratum
from specdecode_operator.judge.guard import Aim, Guard
from specdecode_operator.judge.trial_evidence import Counts, columns_of

FARTHEST = 20.0
"""Of a logarithm; bounds beyond it contain no information."""


class Verdict(StrEnum):
    """What to do with the candidate now."""

    CONTINUE = "Continue"
    PROMOTE = "Promote"
    ROLL_BACK = "RollBack"
    INCONCLUSIVE = "Inconclusive"  # the end: keep the old
    NO_DATA = "NoData"  # hold: neither promote nor widen


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the bounds that hold at every look, at their own error each."""

    estimate: float
    lower: float
    upper: float

    @classmethod
    def of_log_ratio(cls, centre: float, low: float, high: float) -> "Interval":
        """The gain, 1 - ratio, from log(candidate / baseline) and its bounds."""
        gains = (-math.expm1(min(bound, FARTHEST)) for bound in (centre, high, low))
        return cls(*gains)


@dataclass(frozen=True, slots=True)
class StratumEffect:
    """The result of one stratum: its share of the work, and its gain where it counts."""

    stratum: Stratum
    baseline_requests: float
    candidate_requests: float
    share: float
    gain: float | None


@dataclass(frozen=True, slots=True)
class Rail:
    """One guard rail: both arms' rates, and whether the candidate is shown to be over it."""

    name: str
    baseline: float
    candidate: float
    limit: float
    is_broken: bool


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, and its evidence. `gain` is 1 - candidate/baseline seconds per token.

    `first_token` is the gain in the mean time to first token. None: not known yet.
    """

    verdict: Verdict
    reason: str  # CamelCase
    message: str
    gain: Interval | None = None
    first_token: Interval | None = None
    baseline_requests: float = 0.0
    candidate_requests: float = 0.0
    strata: tuple[StratumEffect, ...] = ()
    coverage: float = 0.0  # share of the work in strata that count
    rails: tuple[Rail, ...] = ()
    pairs: int = 0  # of turns, where the arms took turns
    elapsed_s: float = 0.0


_Answer = tuple[Verdict, str, str]


@dataclass(frozen=True, slots=True)
class Findings:
    """What is known at one look. `unmet`: reason and message of each floor not reached yet.

    `gain` is of decode time per token, `first_token` of the time to the first token; both as
    1 - candidate/baseline.
    """

    baseline_requests: float
    candidate_requests: float
    gain: Interval | None
    alarm: tuple[str, str] | None
    rails: tuple[Rail, ...]
    unmet: tuple[tuple[str, str], ...]
    strata: tuple[StratumEffect, ...]
    coverage: float
    pairs: int
    elapsed_s: float
    first_token: Interval | None = None
    has_first_token: bool = False


def conclude(found: Findings, guard: Guard) -> Judgement:
    """Ask, in this order: broken, slower, better, cannot become better, out of time."""
    verdict, reason, message = _break(found) or _compare(found, guard) or _wait(found, guard)
    return Judgement(
        verdict=verdict,
        reason=reason,
        message=message,
        gain=found.gain,
        first_token=found.first_token,
        baseline_requests=found.baseline_requests,
        candidate_requests=found.candidate_requests,
        strata=found.strata,
        coverage=found.coverage,
        rails=found.rails,
        pairs=found.pairs,
        elapsed_s=found.elapsed_s,
    )


def _break(found: Findings) -> _Answer | None:
    """What needs no floors: early alarms and guardrails."""
    if found.alarm is not None:
        return Verdict.ROLL_BACK, *found.alarm
    for rail in found.rails:
        if rail.is_broken:
            rates = f"{rail.candidate:.4g} against {rail.baseline:.4g}"
            message = f"guardrail {rail.name}: {rates}, at most {rail.limit:.4g} allowed"
            return Verdict.ROLL_BACK, f"{rail.name}Rail", message
    return None


def _compare(found: Findings, guard: Guard) -> _Answer | None:
    """What the gain shows, where all floors that hold for it are reached."""
    gain = found.gain
    if gain is None or [reason for reason, _ in found.unmet if reason != "TooSoon"]:
        return None
    text = _describe(gain)
    worst = 0.0 if guard.aim is Aim.GAIN else -guard.margin
    if gain.upper < worst:
        return Verdict.ROLL_BACK, "Slower", f"{text}: slower than the baseline"
    first = found.first_token
    if first is not None and first.upper < -guard.first_token_margin:
        message = f"time to first token {_percent(first)}, at most {guard.first_token_margin:+.0%}"
        return Verdict.ROLL_BACK, "FirstTokenSlower", message
    if found.unmet:
        return None
    is_better = gain.lower > worst
    if guard.aim is Aim.GAIN:
        is_better = is_better and gain.estimate >= guard.min_gain
    if is_better and _keeps_first_token(found, guard):
        return Verdict.PROMOTE, *_praise(guard, text)
    # While it looks like a loss, more data distinguish a loss (never tried again) from no gain.
    is_futile = gain.upper < guard.min_gain and gain.estimate > -0.25 * guard.margin
    if guard.aim is Aim.GAIN and is_futile:
        message = f"{text}: below the least gain of {guard.min_gain:.1%}, the baseline stays"
        return Verdict.INCONCLUSIVE, "GainTooSmall", message
    return None


def _keeps_first_token(found: Findings, guard: Guard) -> bool:
    """Whether a loss of time to first token beyond its margin is ruled out."""
    if found.first_token is None:
        return not found.has_first_token
    return found.first_token.lower > -guard.first_token_margin


def _praise(guard: Guard, text: str) -> tuple[str, str]:
    if guard.aim is Aim.GAIN:
        return "Faster", f"{text}: faster than the baseline"
    return "NotSlower", f"{text}: at most {guard.margin:.1%} slower than the baseline"


def _wait(found: Findings, guard: Guard) -> _Answer:
    """Nothing is shown: the end, no data, or the first floor that is missing."""
    if found.unmet and found.unmet[0][0] == "TooFewPods":
        is_due = found.elapsed_s >= guard.min_duration_s
        verdict = Verdict.INCONCLUSIVE if is_due else Verdict.CONTINUE
        return verdict, *found.unmet[0]
    if found.elapsed_s >= guard.max_duration_s:
        text = "no data" if found.gain is None else _describe(found.gain)
        message = f"{text}: nothing shown in {found.elapsed_s:.0f} s, the baseline stays"
        return Verdict.INCONCLUSIVE, "OutOfTime", message
    for arm, requests in (
        ("baseline", found.baseline_requests),
        ("candidate", found.candidate_requests),
    ):
        if not requests > 0.0:
            message = f"the {arm} has finished no request yet: neither arm is judged"
            return Verdict.NO_DATA, "NoRequests", message
    if found.unmet:
        return Verdict.CONTINUE, *found.unmet[0]
    text = "no comparison yet" if found.gain is None else _describe(found.gain)
    if found.gain is not None and not _keeps_first_token(found, guard):
        first = "not compared yet" if found.first_token is None else _percent(found.first_token)
        text += f", time to first token {first}, at most {guard.first_token_margin:+.0%} allowed"
    return Verdict.CONTINUE, "NotClear", f"{text}: more requests are needed"


def _describe(gain: Interval) -> str:
    return f"decode time per token {_percent(gain)}"


def _percent(gain: Interval) -> str:
    return f"{-gain.estimate:+.1%} ({-gain.upper:+.1%} to {-gain.lower:+.1%})"


def compare_strata(
    strata: tuple[Stratum, ...], counts: Counts, guard: Guard
) -> tuple[tuple[StratumEffect, ...], float]:
    """Each stratum's gain, and the share of the work in strata with enough requests of each arm."""
    columns = list(columns_of(counts, len(strata), "requests", "tokens", "decode_us"))
    work = sum(map(sum, columns[-2:])) or 1
    effects, covered = [], 0.0
    for stratum, old, new, old_tokens, new_tokens, old_us, new_us in zip(
        strata, *columns, strict=True
    ):
        share = (old_us + new_us) / work
        gain = None
        counts_enough = min(old, new) >= guard.min_stratum_requests
        if counts_enough and min(old_us, old_tokens, new_tokens) > 0:
            gain = 1.0 - new_us / new_tokens * old_tokens / old_us
            covered += share
        effects.append(StratumEffect(stratum, old, new, share, gain))
    return tuple(effects), covered


def request_counts(counts: Counts, strata: int) -> tuple[int, int]:
    """Requests of the baseline and of the candidate."""
    old, new = map(sum, columns_of(counts, strata, "requests"))
    return old, new


def unmet_floors(
    requests: int, coverage: float, guard: Guard, elapsed_s: float
) -> tuple[tuple[str, str], ...]:
    """Reason and message of what is still missing; `TooSoon` holds back promotions only."""
    unmet = []
    if requests < guard.min_requests:
        message = f"{requests} of {guard.min_requests} requests in the smaller arm"
        unmet.append(("TooFewRequests", message))
    if coverage < guard.min_coverage:
        message = (
            f"strata with {guard.min_stratum_requests} requests in each arm hold {coverage:.0%} of"
            f" the work, {guard.min_coverage:.0%} are needed"
        )
        unmet.append(("TooLittleCovered", message))
    if elapsed_s < guard.min_duration_s:
        message = f"{elapsed_s:.0f} s of {guard.min_duration_s:.0f} s before a promotion"
        unmet.append(("TooSoon", message))
    return tuple(unmet)
