"""From what was found to a verdict: one order of questions for arms side by side and in turns."""

from dataclasses import dataclass

from specdecode_operator.judge.guard import Aim, Guard
from specdecode_operator.judge.judgement import (
    Interval,
    Judgement,
    Rail,
    StratumEffect,
    Verdict,
)


@dataclass(frozen=True, slots=True)
class Findings:
    """What is known at one look. `unmet`: reason and sentence of each floor not reached yet."""

    baseline_requests: float
    candidate_requests: float
    gain: Interval | None
    accept: Interval | None
    alarm: tuple[str, str] | None
    rails: tuple[Rail, ...]
    unmet: tuple[tuple[str, str], ...]
    strata: tuple[StratumEffect, ...]
    coverage: float
    pairs: int
    elapsed_s: float


def conclude(found: Findings, guard: Guard) -> Judgement:
    """Ask, in this order: broken, slower, better, cannot become better, out of time."""
    verdict, reason, message = _break(found) or _compare(found, guard) or _wait(found, guard)
    return Judgement(
        verdict=verdict,
        reason=reason,
        message=message,
        gain=found.gain,
        accept=found.accept,
        baseline_requests=found.baseline_requests,
        candidate_requests=found.candidate_requests,
        strata=found.strata,
        coverage=found.coverage,
        rails=found.rails,
        pairs=found.pairs,
        elapsed_s=found.elapsed_s,
    )


Answer = tuple[Verdict, str, str]


def _break(found: Findings) -> Answer | None:
    """What needs no floors: the early alarm and guard rails, what is certain before the rest."""
    if found.alarm is not None:
        return Verdict.ROLL_BACK, *found.alarm
    for rail in found.rails:
        if rail.is_broken:
            seen = f"{rail.candidate:.4g} against {rail.baseline:.4g}"
            message = f"guard rail {rail.name}: {seen}, at most {rail.limit:.4g} allowed"
            return Verdict.ROLL_BACK, f"{rail.name}Rail", message
    return None


def _compare(found: Findings, guard: Guard) -> Answer | None:
    """What the gain says, where all floors that hold for it are reached."""
    gain = found.gain
    if gain is None or [reason for reason, _ in found.unmet if reason != "TooSoon"]:
        return None
    seen = _say(gain)
    worst = 0.0 if guard.aim is Aim.GAIN else -guard.margin
    if gain.upper < worst:
        return Verdict.ROLL_BACK, "Slower", f"{seen}: slower than the baseline"
    if found.unmet:
        return None
    if gain.lower > worst and (guard.aim is Aim.NO_LOSS or gain.estimate >= guard.min_gain):
        return Verdict.PROMOTE, *_praise(guard, seen)
    # Where it looks like a loss, going on tells a loss (never tried again) from too small a gain.
    is_futile = gain.upper < guard.min_gain and gain.estimate > -guard.margin
    if guard.aim is Aim.GAIN and is_futile:
        message = f"{seen}: below the least gain of {guard.min_gain:.1%}, the baseline stays"
        return Verdict.INCONCLUSIVE, "GainTooSmall", message
    return None


def _praise(guard: Guard, seen: str) -> tuple[str, str]:
    if guard.aim is Aim.GAIN:
        return "Faster", f"{seen}: faster than the baseline"
    return "NotSlower", f"{seen}: at most {guard.margin:.1%} slower than the baseline"


def _wait(found: Findings, guard: Guard) -> Answer:
    """Nothing is shown: the end, no data, or the first floor that is missing."""
    if found.elapsed_s >= guard.max_duration_s:
        seen = "no data" if found.gain is None else _say(found.gain)
        message = f"{seen}: nothing shown in {found.elapsed_s:.0f} s, the baseline stays"
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
    seen = "no comparison yet" if found.gain is None else _say(found.gain)
    return Verdict.CONTINUE, "NotClear", f"{seen}: more requests are needed"


def _say(gain: Interval) -> str:
    return f"decode time per token {-gain.estimate:+.1%} ({-gain.upper:+.1%} to {-gain.lower:+.1%})"
