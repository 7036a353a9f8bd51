"""Early alarms: what no load explains, from the first pair of turns on.

The bounds of `randomization` need some nine pairs. Before, a candidate is rolled back only for a
factor of `FACTOR` or more within equal strata (batch size included), which load does not bring
about: tokens per step at most half, with slower decoding; or decode time per token at least double,
with slower steps. Content that changes during a pair can halve tokens per step, and another process
on the machine can double decode time. So several pairs have to show the same loss, and none the
opposite: `Guard.fallen_pairs` of them for tokens per step, `SLOW_PAIRS` for decode time. If the
arms are equal, chance brings it about in p of the pairs for either arm, and in p² or p³ of the
trials for the candidate. Only the first `PAIRS` pairs are looked at; later the bounds are as quick.

A broken draft is slow, so requests pile up: its batches are larger than those of the baseline, and
equal strata are rare. So tokens per step are compared across batch sizes as well, if the candidate
was not under the higher load, and its decode time per token is longer than its batches explain. At
equal load that is so for every slower candidate: batches then grow as decode time per token does
(Little 1961), and a batch of twice the size takes less than `TIME_OF_DOUBLE` as long.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from specdecode_operator.judge.evidence import Role, Stratum
from specdecode_operator.judge.trial_evidence import (
    ROLES,
    ROW,
    Cell,
    Counts,
    add_counts,
    column_of,
    columns_of,
    row_of,
)

FACTOR = 2.0
PAIRS = 5
SLOW_PAIRS = 3
FACTOR_OF_PAIR = 1.5
"""By which tokens per step fall in each pair, where `FACTOR` is shown by their sum."""
FEWEST = 4.0
"""Requests of each role in comparable strata."""
REQUEST_SPREAD = 0.2
"""Standard deviation between requests of one stratum, on the logarithmic scale."""
CERTAINTY = 1.5
"""Standard errors beyond the factor."""
TIME_OF_DOUBLE = 1.5
"""Factor of decode time that a batch of twice the size explains."""
SAME_LOAD = 1.5
"""Requests of the candidate for each of the baseline, above which its load was higher."""

Reason = tuple[str, str]

_STRATA = 64
"""Latest sets of strata whose comparable ones are kept."""


@dataclass(frozen=True, slots=True)
class Matched:
    """Both roles within comparable strata, on the logarithmic scale: candidate minus baseline."""

    steps_per_token: float
    decode_time_per_token: float
    error: float


def match(counts: Counts, strata: Sequence[Stratum], has_others: bool = False) -> Matched | None:
    """Compare what both roles did in the same strata; None where they share too little.

    A stratum weighs as much as the smaller role has requests in it. `has_others`: requests that are
    left over are compared across batch sizes, the nearest first, and decode time is lowered by what
    a larger batch of the candidate explains.
    """
    columns = list(columns_of(counts, len(strata), *Cell._fields))
    old, new = (list(map(Cell, *columns[role::2])) for role in range(2))
    left_old, left_new = (
        [float(cell.requests) if min(cell) > 0 else 0.0 for cell in row] for row in (old, new)
    )
    total = steps = time = 0.0
    for one, other, doublings in _comparable(tuple(strata), has_others):
        weight = min(left_old[one], left_new[other])
        if weight <= 0.0:
            continue
        left_old[one] -= weight
        left_new[other] -= weight
        total += weight
        steps += weight * _log_ratio(old[one], new[other], "steps")
        time += weight * _log_ratio(old[one], new[other], "decode_us")
        time -= weight * max(0.0, doublings) * math.log(TIME_OF_DOUBLE)
    if total < FEWEST:
        return None
    return Matched(steps / total, time / total, REQUEST_SPREAD * math.sqrt(2.0 / total))


def find_alarm(
    pairs: Sequence[Counts],
    running: Counts,
    strata: Sequence[Stratum],
    fallen_pairs: int = 1,
    before: Counts = (),
) -> Reason | None:
    """Reason and message of an alarm from complete pairs and the running one, if there is one.

    Decode time counts in complete pairs only: pods of one moment may differ in speed.
    `fallen_pairs`: fewest pairs, the running one included, that show fewer tokens per step.
    `before`: what the baseline answered before the trial; the candidate must be below that as well.
    """
    if len(pairs) > PAIRS:
        return None
    shown = [*pairs, running] if running else pairs
    fall = _find_fall(shown, strata, fallen_pairs)
    if fall and before and not _is_below(add_counts(*shown), before, strata):
        fall = None
    return fall or _find_heavy_loss(pairs, strata)


def _find_fall(
    pairs: Sequence[Counts], strata: Sequence[Stratum], fallen_pairs: int
) -> Reason | None:
    """Tokens per step at most half in the sum of all pairs, and fewer in each comparable one."""
    reason = _find_fall_of_sum(add_counts(*pairs), strata)
    if reason is None:
        return None
    found = [matched for matched in (match(pair, strata, True) for pair in pairs) if matched]
    has_fallen = [each.steps_per_token >= math.log(FACTOR_OF_PAIR) for each in found]
    return reason if len(found) >= fallen_pairs and all(has_fallen) else None


def _is_below(everything: Counts, before: Counts, strata: Sequence[Stratum]) -> bool:
    """Whether the candidate has fewer tokens per step than the baseline had at other times.

    One pair shows a fall of the content as well as one of the draft. What pods have answered for
    hours contains both kinds of content, most often in strata of their own: a slow kind fills
    larger batches.
    """
    columns = list(columns_of(before, len(strata), *Cell._fields))
    others = list(columns_of(everything, len(strata), *Cell._fields))
    counts = list(everything[: 2 * ROW])
    for at in range(len(strata)):
        counts += [column[at] for column in columns[0::2]]
        counts += [column[at] for column in others[1::2]]
    found = match(tuple(counts), strata, has_others=True)
    return found is None or found.steps_per_token >= math.log(FACTOR_OF_PAIR)


def _find_fall_of_sum(everything: Counts, strata: Sequence[Stratum]) -> Reason | None:
    """Tokens per step at most half: at equal batch sizes, or at any under equal load.

    Decoding is slower as well, unless engines of the candidate have found that their draft does not
    fit: they decode without it then, which may be no slower.
    """
    is_unfit = row_of(everything, Role.CANDIDATE).unfit_drafts > 0
    tries = [(match(everything, strata), "equal batch sizes")]
    if _has_same_load(everything):
        tries.append((match(everything, strata, has_others=True), "equal load"))
    for found, where in tries:
        if found is None:
            continue
        sure = CERTAINTY * found.error
        has_fallen = found.steps_per_token - sure >= math.log(FACTOR)
        if has_fallen and (is_unfit or found.decode_time_per_token > sure):
            accept = math.expm1(-found.steps_per_token)
            how = "and its engines decode without it" if is_unfit else "with slower decoding"
            message = f"tokens per step {accept:+.0%} at {where}, {how}"
            return "AcceptLengthFell", f"{message}: the draft does not fit"
    return None


def _find_heavy_loss(pairs: Sequence[Counts], strata: Sequence[Stratum]) -> Reason | None:
    """Decode time per token at least double in each comparable pair, of `SLOW_PAIRS` or more."""
    if len(pairs) < SLOW_PAIRS:
        return None
    found = [matched for matched in (match(counts, strata) for counts in pairs) if matched]
    if len(found) < SLOW_PAIRS or not all(_is_heavy_loss(matched) for matched in found):
        return None
    least = math.expm1(min(matched.decode_time_per_token for matched in found))
    pairs_text = f"in each of {len(found)} pairs"
    return (
        "HeavyLoss",
        f"decode time per token {least:+.0%} or more at equal batch sizes, {pairs_text}",
    )


def _is_heavy_loss(matched: Matched) -> bool:
    time, sure = matched.decode_time_per_token, CERTAINTY * matched.error
    has_slow_steps = time - matched.steps_per_token - sure >= math.log(TIME_OF_DOUBLE)
    return time - sure >= math.log(FACTOR) and has_slow_steps


def _has_same_load(counts: Counts) -> bool:
    """Turns of a pair are equally long, so numbers of requests are loads."""
    old, new = (sum(column_of(counts, role, "requests")) for role in ROLES)
    return new <= SAME_LOAD * old


@lru_cache(maxsize=_STRATA)
def _comparable(strata: tuple[Stratum, ...], has_others: bool) -> list[tuple[int, int, float]]:
    """Indices of strata of the baseline and of the candidate to compare, in this order.

    The last number is how often the batch size has doubled.
    """
    found = [(one, one, 0.0) for one in range(len(strata))]
    if has_others:
        alike = defaultdict(list)
        for at, one in enumerate(strata):
            alike[one._replace(batch_size=0)].append(at)
        apart = [
            (at, other, math.log2(strata[other].batch_size / one.batch_size))
            for at, one in enumerate(strata)
            for other in alike[one._replace(batch_size=0)]
            if 0 < one.batch_size != strata[other].batch_size > 0
        ]
        found += sorted(apart, key=lambda each: abs(each[2]))
    return found


def _log_ratio(old: Cell, new: Cell, name: str) -> float:
    return math.log(getattr(new, name) / new.tokens * old.tokens / getattr(old, name))
