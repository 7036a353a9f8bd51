"""From what was found to a verdict: one order of questions for both arrangements."""

from dataclasses import dataclass

from specdecode_operator.judge.guard import Aim, Guard
from specdecode_operator.judge.judgement import (
    Interval,
    Judgement,
    Rail,
    StratumEffect,
    Verdict,
)

Answer = tuple[Verdict, str, str]


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


def _break(found: Findings) -> Answer | None:
    """What needs no floors: early alarms and guardrails."""
    if found.alarm is not None:
        return Verdict.ROLL_BACK, *found.alarm
    for rail in found.rails:
        if rail.is_broken:
            rates = f"{rail.candidate:.4g} against {rail.baseline:.4g}"
            message = f"guardrail {rail.name}: {rates}, at most {rail.limit:.4g} allowed"
            return Verdict.ROLL_BACK, f"{rail.name}Rail", message
    return None


def _compare(found: Findings, guard: Guard) -> Answer | None:
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


def _wait(found: Findings, guard: Guard) -> Answer:
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
    return Verdict.CONTINUE, "NotClear", f"{text}: more requests are needed"


def _describe(gain: Interval) -> str:
    return f"decode time per token {_percent(gain)}"


def _percent(gain: Interval) -> str:
    return f"{-gain.estimate:+.1%} ({-gain.upper:+.1%} to {-gain.lower:+.1%})"
