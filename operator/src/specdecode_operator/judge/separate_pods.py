"""Arms on separate pods: the pod is the unit of observation.

What pods share with nobody (sticky sessions, a noisy neighbour) lasts for minutes, so thousands of
requests of one pod are one observation. Each pod's mean of its windows is one value; the arms are
compared by Welch's t-test over pods, at most `LOOKS` times, each at an equal share of the error
(Bonferroni), so that asking more often changes nothing. It assumes that equal pods differ by a
roughly normal amount and that no pod is chosen for its arm; nothing is randomized.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from specdecode_operator.judge.alarms import FACTOR_OF_PAIR, FEWEST, Reason, find_alarm
from specdecode_operator.judge.evidence import Role
from specdecode_operator.judge.guard import Guard
from specdecode_operator.judge.guardrails import certain_rails
from specdecode_operator.judge.judgement import (
    Findings,
    Interval,
    compare_strata,
    request_counts,
    unmet_floors,
)
from specdecode_operator.judge.trial_evidence import (
    ROLES,
    Cell,
    PodEvidence,
    PodWindow,
    PodWindows,
)

FEWEST_PODS = 5
LOOKS = (3, 6, 12, 24)
"""Windows after which the arms are compared."""
LEAST_SPREAD = 0.002
"""Between pods, on the logarithmic scale; equal pods prove nothing faster."""

_KEPT = 256
"""Latest intervals and quantiles that are kept: most looks are at the values of the one before."""

Measure = Callable[[Sequence[PodWindow]], float | None]


def find_by_pods(evidence: PodEvidence, guard: Guard, elapsed_s: float) -> Findings:
    """What is known at this moment; between two looks, what was known at the one before."""
    strata, coverage = compare_strata(evidence.strata, evidence.total, guard)
    baseline, candidate = request_counts(evidence.total, len(evidence.strata))
    windows = max((each.number + 1 for pod in evidence.pods for each in pod.windows), default=0)
    due = [look for look in LOOKS if look <= windows]
    pods = [sum(each.role is role for each in evidence.pods) for role in ROLES]
    gain = first_token = None
    if due and min(pods) >= FEWEST_PODS:
        gain = _compare(evidence.pods, due[-1], _decode, guard)
        first_token = _compare(evidence.pods, due[-1], _first_token, guard)
    missing = () if min(pods) >= FEWEST_PODS else (_too_few(min(pods)),)
    return Findings(
        baseline_requests=baseline,
        candidate_requests=candidate,
        gain=gain,
        first_token=first_token,
        has_first_token=any(each.first_tokens for pod in evidence.pods for each in pod.windows),
        alarm=_find_alarm(evidence),
        rails=certain_rails(evidence.total, guard),
        unmet=(*missing, *unmet_floors(min(baseline, candidate), coverage, guard, elapsed_s)),
        strata=strata,
        coverage=coverage,
        pairs=0,
        elapsed_s=elapsed_s,
    )


def _find_alarm(evidence: PodEvidence) -> Reason | None:
    """Tokens per step at most half in the sum of all pods, and fewer on each pod of the candidate.

    Content can stick to pods. If the arms are equal, all pods of the candidate are below all n of
    the baseline by chance in one of C(2n, n) trials: one of 70 for four pods of each arm. With few
    pods the factor alone protects.
    """
    if not are_apart((pod.role, pod.sums) for pod in evidence.pods):
        return None
    return find_alarm((), evidence.total, evidence.strata)


def are_apart(pods: Iterable[tuple[Role, Cell]]) -> bool:
    """Whether each pod of the candidate has fewer tokens per step than any of the baseline.

    By `FACTOR_OF_PAIR`; pods with fewer than `FEWEST` requests are left out.
    """
    arms: dict[Role, list[float]] = {role: [] for role in ROLES}
    for role, sums in pods:
        if sums.steps > 0 and sums.requests >= FEWEST:
            arms[role].append(sums.tokens / sums.steps)
    old, new = arms[Role.BASELINE], arms[Role.CANDIDATE]
    return bool(old and new) and max(new) * FACTOR_OF_PAIR <= min(old)


def _too_few(pods: int) -> tuple[str, str]:
    return "TooFewPods", f"{pods} of {FEWEST_PODS} pods in the smaller arm"


def _compare(
    pods: Iterable[PodWindows], until: int, measure: Measure, guard: Guard
) -> Interval | None:
    """The gain over pods, with its bounds; None where too few pods have a value."""
    arms: dict[Role, list[float]] = {role: [] for role in ROLES}
    for pod in pods:
        value = measure([each for each in pod.windows if each.number < until])
        if value is not None:
            arms[pod.role].append(value)
    if min(len(values) for values in arms.values()) < FEWEST_PODS:
        return None
    return _interval(tuple(arms[Role.BASELINE]), tuple(arms[Role.CANDIDATE]), guard)


@lru_cache(maxsize=_KEPT)
def _interval(old: tuple[float, ...], new: tuple[float, ...], guard: Guard) -> Interval:
    """Welch's interval for the difference of the means."""
    parts = [max(statistics.variance(arm), LEAST_SPREAD**2) / len(arm) for arm in (old, new)]
    squares = [part**2 / (len(arm) - 1) for part, arm in zip(parts, (old, new), strict=True)]
    freedom = int(sum(parts) ** 2 / sum(squares))
    error = math.sqrt(sum(parts))
    centre = statistics.mean(new) - statistics.mean(old)
    down, up = (
        error * quantile(alpha / len(LOOKS), freedom)
        for alpha in (guard.loss_alpha, guard.win_alpha)
    )
    return Interval.of_log_ratio(centre, centre - down, centre + up)


def _decode(windows: Sequence[PodWindow]) -> float | None:
    weight = sum(each.expected_us for each in windows)
    if weight <= 0:
        return None
    return sum(each.expected_us * each.log_ratio_micro for each in windows) / weight / 1e6


def _first_token(windows: Sequence[PodWindow]) -> float | None:
    count = sum(each.first_tokens for each in windows)
    total = sum(each.first_token_us for each in windows)
    return math.log(total / count) if count > 0 and total > 0 else None


def upper_tail(statistic: float, freedom: int) -> float:
    """Probability of a value of Student's distribution above `statistic`, for whole `freedom`.

    Abramowitz and Stegun 26.7.3 and 26.7.4.
    """
    angle = math.atan2(statistic, math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    term = total = cosine if freedom % 2 else 1.0
    for step in range(3 if freedom % 2 else 2, freedom - 1, 2):
        term *= cosine**2 * (step - 1) / step
        total += term
    if freedom % 2:
        inside = 2.0 / math.pi * (angle + (sine * total if freedom > 1 else 0.0))
    else:
        inside = sine * total
    return 0.5 * (1.0 - inside)


@lru_cache(maxsize=_KEPT)
def quantile(alpha: float, freedom: int) -> float:
    """Value of Student's distribution with probability `alpha` above it."""
    low, high = 0.0, 1e6
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if upper_tail(middle, freedom) > alpha else (low, middle)
    return high
