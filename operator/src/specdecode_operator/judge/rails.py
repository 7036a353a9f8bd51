"""Guard rails: what a faster candidate must not pay with. They have their own share of the error.

The share is divided evenly over those that are a matter of chance, because one broken rail is
enough to roll back: Holm's method begins with the same division and differs only in what it says
of the others. Observations of one request, or of one round, come together; so where arms run side
by side a request counts once however many tokens it had, and where they take turns a pair does.
"""

from collections.abc import Sequence

from specdecode_operator.judge.evidence import ArmEvidence, Latencies
from specdecode_operator.judge.failures import check_failures
from specdecode_operator.judge.guard import Guard
from specdecode_operator.judge.judgement import Rail
from specdecode_operator.judge.pooled import request_count
from specdecode_operator.judge.shares import Allowance, Shares, check_share, check_share_by_pair
from specdecode_operator.judge.tails import tail_bucket, tail_shares, tail_shares_by_pair

BY_CHANCE = 4  # first token, inter-token, memory, errors
PREEMPTED_SLACK = 0.02  # share of requests; memory that is just enough retracts now and then

Pair = tuple[ArmEvidence, ArmEvidence]  # of the baseline, of the candidate


def check_rails(arms: Pair, guard: Guard) -> tuple[Rail, ...]:
    """Check arms that ran side by side."""
    alpha = guard.rail_alpha / BY_CHANCE
    counts = request_count(arms[0]), request_count(arms[1])
    rails = []
    for allowed, latencies in _tails(arms, guard):
        bucket = tail_bucket(latencies[0])
        shares = None if bucket is None else tail_shares(latencies, bucket)
        if shares is not None and min(counts) > 0.0:
            rails.append(check_share(allowed, shares, counts, alpha))
    preempted = _preempted(arms)
    if preempted is not None:
        rails.append(check_share(_memory(guard), preempted, counts, alpha))
    return (*check_failures(*arms, guard, alpha), *rails)


def check_rails_by_pair(
    everything: Pair, compared: Pair, pairs: Sequence[Pair], guard: Guard
) -> tuple[Rail, ...]:
    """Check arms that took turns; failures count in all blocks, the rest pair by pair."""
    alpha = guard.rail_alpha / BY_CHANCE
    rails = []
    by_pair = [[latencies for _, latencies in _tails(pair, guard)] for pair in pairs]
    for tail, (allowed, latencies) in enumerate(_tails(compared, guard)):
        bucket = tail_bucket(latencies[0])
        shares = None if bucket is None else tail_shares(latencies, bucket)
        if bucket is not None and shares is not None:
            known = tail_shares_by_pair([pair[tail] for pair in by_pair], bucket)
            rails.append(check_share_by_pair(allowed, shares, known, alpha))
    preempted = _preempted(compared)
    if preempted is not None:
        known = [shares for pair in pairs if (shares := _preempted(pair)) is not None]
        rails.append(check_share_by_pair(_memory(guard), preempted, known, alpha))
    return (*check_failures(*everything, guard, alpha), *rails)


def _tails(arms: Pair, guard: Guard) -> list[tuple[Allowance, tuple[Latencies, Latencies]]]:
    old, new = arms
    factor = 1.0 + guard.tail_rise
    return [
        (Allowance("FirstToken", factor), (old.first_token, new.first_token)),
        (Allowance("InterToken", factor), (old.inter_token, new.inter_token)),
    ]


def _memory(guard: Guard) -> Allowance:
    return Allowance("Memory", 1.0 + guard.tail_rise, PREEMPTED_SLACK)


def _preempted(arms: Pair) -> Shares | None:
    """Shares of requests that lost their memory for a while, once or more often."""
    counts = [request_count(arm) for arm in arms]
    if min(counts) <= 0.0:
        return None
    old, new = (
        min(1.0, arm.preempted_requests / count) for arm, count in zip(arms, counts, strict=True)
    )
    return old, new
