"""The early alarm: a draft that does not match its target, within tens of requests.

Accept length alone proves no harm: a table with shallower drafts has a smaller one and may be
faster. So two things must be shown, that it fell by `accept_drop` and that decoding became slower;
either may use the alarm's whole error, since a false alarm needs both to be wrong.
"""

import math
from dataclasses import dataclass

from specdecode_operator.judge.confidence import radius, tuned_information
from specdecode_operator.judge.evidence import ArmEvidence
from specdecode_operator.judge.guard import Guard
from specdecode_operator.judge.judgement import Interval
from specdecode_operator.judge.pooled import request_count
from specdecode_operator.judge.ratio import seconds_per_token, tokens_per_round
from specdecode_operator.judge.standardised import compare

FEWEST = 15.0  # requests of each arm
EARLY = 0.5  # difference on the logarithmic scale where the alarm should be quickest


@dataclass(frozen=True, slots=True)
class Alarm:
    """Tokens per round, candidate / baseline - 1, and what is wrong with them, if anything."""

    accept: Interval | None = None
    reason: tuple[str, str] | None = None


def check_accept(
    baseline: ArmEvidence, candidate: ArmEvidence, guard: Guard, alpha: float
) -> Alarm:
    """Compare accept lengths; None and silence below `FEWEST` requests."""
    if min(request_count(baseline), request_count(candidate)) < FEWEST:
        return Alarm()
    accept = compare(baseline, candidate, tokens_per_round)
    time = compare(baseline, candidate, seconds_per_token)
    if accept is None or time is None:
        return Alarm()
    tuned = tuned_information(EARLY, alpha)
    away = radius(accept.variance, alpha, tuned)
    fell = accept.value + away < math.log(1.0 - guard.accept_drop)
    slower = time.value - radius(time.variance, alpha, tuned) > 0.0
    interval = Interval(
        math.expm1(accept.value),
        math.expm1(accept.value - away),
        math.expm1(accept.value + away),
    )
    if not (fell and slower):
        return Alarm(interval)
    message = (
        f"tokens per round {interval.estimate:+.0%} and decode time per token"
        f" {math.expm1(time.value):+.0%}: the draft does not fit"
    )
    return Alarm(interval, ("AcceptLengthFell", message))
