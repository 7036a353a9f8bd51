"""Arms that take turns on the same pods: each pair of blocks is one observation.

One pod: a switchback, its two blocks one after the other. Several pods: a crossover, half of them
begin with the candidate and all change over in the middle of the pair. Either way a pod is compared
with itself, so a slow pod is slow in both arms; requests of one block share its load, so pairs of
blocks, not requests, are what is counted, and their own spread says how far they can be trusted.
"""

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from specdecode_operator.judge.accept import check_accept
from specdecode_operator.judge.confidence import radius, student_radius, tuned_information
from specdecode_operator.judge.decision import Findings, conclude
from specdecode_operator.judge.evidence import ArmEvidence, Role
from specdecode_operator.judge.guard import Guard
from specdecode_operator.judge.judgement import Interval, Judgement
from specdecode_operator.judge.pooled import pool, request_count
from specdecode_operator.judge.rails import Pair, check_rails_by_pair
from specdecode_operator.judge.ratio import seconds_per_token
from specdecode_operator.judge.side_by_side import as_gain, stratum_effects, unmet_floors
from specdecode_operator.judge.standardised import (
    compare,
    difference,
    pooled_rates,
    seen_to_expected,
)
from specdecode_operator.judge.stratified import contrast


@dataclass(frozen=True, slots=True)
class Block:
    """What one pod did in one role within one pair, its washout left out.

    Pods that change over together may stand as one, under one name.
    """

    pair: int
    pod: str
    role: Role
    evidence: ArmEvidence
    is_finished: bool = True  # a block that still grows is no observation yet


FEWEST = 10.0  # requests of each role, for a pair to be an observation
LEAST_SPREAD = 0.001  # between pairs; equal blocks prove nothing faster


def schedule(seed: int, pairs: int) -> tuple[tuple[Role, Role], ...]:
    """Order of the two roles in each pair, random, and balanced within every four pairs.

    A longer schedule from the same seed begins with the shorter one. In a crossover this is the
    order of one half of the pods; the other half takes the reverse.
    """
    draw = random.Random(seed)
    first = (Role.BASELINE, Role.CANDIDATE)
    orders: list[tuple[Role, Role]] = []
    while len(orders) < pairs:
        four = [first, first, first[::-1], first[::-1]]
        draw.shuffle(four)
        orders += four
    return tuple(orders[:pairs])


def judge_blocks(blocks: Sequence[Block], guard: Guard, elapsed_s: float) -> Judgement:
    """Judge by pairs in which a pod finished both roles; what has only one is left out.

    Failures and the early alarm are looked for in all blocks, those of an unfinished pair too.
    """
    pairs, others = complete_pairs(blocks)
    compared = pool(old for old, _ in pairs), pool(new for _, new in pairs)
    everything = _with_others(compared, others)
    time = contrast(*compared, seconds_per_token, guard.min_stratum_requests)
    effects = _effects(pairs, compared)
    counts = request_count(compared[0]), request_count(compared[1])
    alarm = check_accept(*everything, guard, guard.alarm_alpha / 2)
    found = Findings(
        baseline_requests=request_count(everything[0]),
        candidate_requests=request_count(everything[1]),
        gain=_gain(effects, guard),
        accept=alarm.accept,
        alarm=alarm.reason or _heavy_loss(compared, guard),
        rails=check_rails_by_pair(everything, compared, pairs, guard),
        unmet=(
            *_missing_pairs(len(effects), guard),
            *unmet_floors(counts, time.coverage, guard, elapsed_s),
        ),
        strata=stratum_effects(time),
        coverage=time.coverage,
        pairs=len(effects),
        elapsed_s=elapsed_s,
    )
    return conclude(found, guard)


def complete_pairs(blocks: Sequence[Block]) -> tuple[list[Pair], list[Block]]:
    """Both arms of each pair, over the pods that finished both roles in it; then other blocks."""
    cells: dict[int, dict[str, list[Block]]] = {}
    for block in blocks:
        cells.setdefault(block.pair, {}).setdefault(block.pod, []).append(block)
    pairs: list[Pair] = []
    others: list[Block] = []
    for _, pods in sorted(cells.items()):
        both: list[Block] = []
        for of_pod in pods.values():
            (both if _is_complete(of_pod) else others).extend(of_pod)
        if both:
            pairs.append(_by_role(both))
    return pairs, others


def _is_complete(of_pod: Sequence[Block]) -> bool:
    return {block.role for block in of_pod} == set(Role) and all(
        block.is_finished for block in of_pod
    )


def _by_role(blocks: Sequence[Block]) -> Pair:
    old, new = (pool(block.evidence for block in blocks if block.role is role) for role in Role)
    return old, new


def _with_others(compared: Pair, others: Sequence[Block]) -> Pair:
    if not others:
        return compared
    old, new = (pool(arms) for arms in zip(compared, _by_role(others), strict=True))
    return old, new


def _effects(pairs: Sequence[Pair], compared: Pair) -> list[float]:
    """log(candidate / baseline) of seconds per token, pair by pair, at the same mix."""
    rates = pooled_rates(pool(compared), seconds_per_token, 1.0)
    effects = []
    for old, new in pairs:
        if min(request_count(old), request_count(new)) < FEWEST:
            continue
        effect = difference(
            seen_to_expected(new, rates, seconds_per_token),
            seen_to_expected(old, rates, seconds_per_token),
        )
        if effect is not None:
            effects.append(effect.value)
    return effects


def _gain(effects: Sequence[float], guard: Guard) -> Interval | None:
    """None while so few pairs can prove nothing."""
    if len(effects) < 2:
        return None
    spread = max(statistics.stdev(effects), LEAST_SPREAD)
    down, up = (
        student_radius(spread, len(effects), alpha)
        for alpha in (guard.promote_alpha, guard.loss_alpha)
    )
    if not math.isfinite(down + up):
        return None
    return as_gain(statistics.mean(effects), down, up)


def _heavy_loss(compared: Pair, guard: Guard) -> tuple[str, str] | None:
    """A loss beyond `heavy_loss` by the requests of complete pairs, few as these may be."""
    if min(request_count(arm) for arm in compared) < guard.min_stratum_requests:
        return None
    effect = compare(*compared, seconds_per_token)
    if effect is None:
        return None
    alpha = guard.alarm_alpha / 2
    away = radius(effect.variance, alpha, tuned_information(guard.heavy_loss, alpha))
    if effect.value - away <= math.log1p(guard.heavy_loss):
        return None
    slower = math.expm1(effect.value)
    return "HeavyLoss", f"decode time per token {slower:+.1%} after the first pairs of blocks"


def _missing_pairs(count: int, guard: Guard) -> tuple[tuple[str, str], ...]:
    if count >= guard.min_pairs:
        return ()
    return (("TooFewPairs", f"{count} of {guard.min_pairs} pairs of blocks"),)
