"""Strata of both arms next to each other, and what is still missing before a verdict."""

from specdecode_operator.judge.evidence import Role, Stratum
from specdecode_operator.judge.guard import Guard
from specdecode_operator.judge.judgement import StratumEffect
from specdecode_operator.judge.trial_evidence import ROLES, Counts, cell_of


def compare_strata(
    strata: tuple[Stratum, ...], counts: Counts, guard: Guard
) -> tuple[tuple[StratumEffect, ...], float]:
    """Each stratum's gain, and the share of the work in strata with enough requests of each arm."""
    rows = [
        (stratum, cell_of(counts, index, Role.BASELINE), cell_of(counts, index, Role.CANDIDATE))
        for index, stratum in enumerate(strata)
    ]
    work = sum(old.decode_us + new.decode_us for _, old, new in rows) or 1
    effects, covered = [], 0.0
    for stratum, old, new in rows:
        share = (old.decode_us + new.decode_us) / work
        gain = None
        counts_enough = min(old.requests, new.requests) >= guard.min_stratum_requests
        if counts_enough and min(old.decode_us, old.tokens, new.tokens) > 0:
            gain = 1.0 - new.decode_us / new.tokens * old.tokens / old.decode_us
            covered += share
        effects.append(StratumEffect(stratum, old.requests, new.requests, share, gain))
    return tuple(effects), covered


def request_counts(counts: Counts, strata: int) -> tuple[int, int]:
    """Requests of the baseline and of the candidate."""
    old, new = (
        sum(cell_of(counts, index, role).requests for index in range(strata)) for role in ROLES
    )
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
