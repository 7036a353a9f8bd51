"""Failed requests, restarts and failed self-tests."""

import math

from specdecode_operator.judge.evidence import ArmEvidence
from specdecode_operator.judge.guard import Guard
from specdecode_operator.judge.judgement import Rail

ODDS = (1.5, 2.0, 4.0, 8.0, 16.0)  # how many times likelier than the baseline to fail


def check_failures(
    baseline: ArmEvidence, candidate: ArmEvidence, guard: Guard, alpha: float
) -> tuple[Rail, ...]:
    """Check what must not happen more often; only failed requests are a matter of chance."""
    restarts = baseline.restarts * max(1, candidate.pods) / max(1, baseline.pods)
    failed_tests = baseline.self_test_failures
    return (
        _check_count("SelfTest", failed_tests, candidate.self_test_failures, failed_tests),
        _check_count(
            "Restarts", baseline.restarts, candidate.restarts, restarts + guard.max_restarts
        ),
        _check_errors(baseline, candidate, guard, alpha),
    )


def log_e_value(old: float, new: float, exposure: float) -> float:
    """Evidence, as a logarithm, that failures fall on the candidate beyond its share of requests.

    Each failure is the candidate's with probability `exposure` at most, unless it fails more
    often; the mean of likelihood ratios over `ODDS` is then a supermartingale, and ever exceeds
    1 / alpha with probability at most alpha (Ville).
    """
    if not 0.0 < exposure < 1.0:
        return 0.0
    logs = []
    for odds in ODDS:
        likely = exposure * odds / (exposure * odds + 1.0 - exposure)
        against = (1.0 - likely) / (1.0 - exposure)
        logs.append(new * math.log(likely / exposure) + old * math.log(against))
    most = max(logs)
    return most + math.log(sum(math.exp(one - most) for one in logs) / len(ODDS))


def _check_errors(
    baseline: ArmEvidence, candidate: ArmEvidence, guard: Guard, alpha: float
) -> Rail:
    seen = [arm.answered_requests + arm.failed_requests for arm in (baseline, candidate)]
    rates = [
        arm.failed_requests / count if count else 0.0
        for arm, count in zip((baseline, candidate), seen, strict=True)
    ]
    # Failures that come with a restart come all at once. The candidate's do not count; if the
    # baseline's did not either, a crash of the baseline would speak against the candidate.
    explained = guard.restart_failures * candidate.restarts
    old, new = baseline.failed_requests, max(0.0, candidate.failed_requests - explained)
    exposure = seen[1] / sum(seen) if sum(seen) else 0.0
    broken = log_e_value(old, new, exposure) >= -math.log(alpha)
    return Rail("Errors", rates[0], rates[1], rates[0], broken)


def _check_count(name: str, old: float, new: float, limit: float) -> Rail:
    return Rail(name, old, new, limit, new > limit)
