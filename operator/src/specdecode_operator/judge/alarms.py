"""Early alarms: what no load explains, from the first pair of turns on.

The bounds of `randomization` need some nine pairs. Before, a candidate is rolled back only for a
factor of `FACTOR` or more within equal strata (batch size included), which neither load nor
content brings about: tokens per step at most half, with slower decoding; or decode time per token
at least double. Only the first `PAIRS` pairs are looked at; later the bounds are as quick.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specdecode_operator.judge.evidence import Role
from specdecode_operator.judge.trial_evidence import Cell, Counts, add_counts, cell_of

FACTOR = 2.0
PAIRS = 4
FEWEST = 4.0
"""Effective requests of each role in equal strata."""
REQUEST_SPREAD = 0.2
"""Standard deviation between requests of one stratum, on the logarithmic scale."""
CERTAINTY = 1.5
"""Standard errors beyond the factor."""

Reason = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Matched:
    """Both roles within equal strata, on the logarithmic scale: candidate minus baseline."""

    steps_per_token: float
    decode_time_per_token: float
    error: float


def match(counts: Counts, strata: int) -> Matched | None:
    """Compare what both roles did in the same strata; None where they share too little.

    A stratum weighs as much as the smaller role has requests in it.
    """
    both = [
        (cell_of(counts, index, Role.BASELINE), cell_of(counts, index, Role.CANDIDATE))
        for index in range(strata)
    ]
    known = [(old, new) for old, new in both if _is_known(old) and _is_known(new)]
    weights = [min(old.requests, new.requests) for old, new in known]
    total = float(sum(weights))
    if total < FEWEST:
        return None
    steps = time = variance = 0.0
    for (old, new), weight in zip(known, weights, strict=True):
        share = weight / total
        steps += share * math.log(new.steps / new.tokens * old.tokens / old.steps)
        time += share * math.log(new.decode_us / new.tokens * old.tokens / old.decode_us)
        variance += share**2 * (1.0 / old.requests + 1.0 / new.requests)
    return Matched(steps, time, REQUEST_SPREAD * math.sqrt(variance))


def find_alarm(pairs: Sequence[Counts], running: Counts, strata: int) -> Reason | None:
    """Reason and message of an alarm from complete pairs and the running one, if there is one.

    Decode time counts in complete pairs only: pods of one moment may differ in speed.
    """
    if len(pairs) > PAIRS:
        return None
    complete: Counts = ()
    for counts in pairs:
        complete = add_counts(complete, counts)
    everything = match(add_counts(complete, running), strata)
    least = math.log(FACTOR)
    if everything is not None:
        fell = everything.steps_per_token - CERTAINTY * everything.error >= least
        slower = everything.decode_time_per_token - CERTAINTY * everything.error > 0.0
        if fell and slower:
            accept = math.expm1(-everything.steps_per_token)
            time = math.expm1(everything.decode_time_per_token)
            message = f"tokens per step {accept:+.0%} and decode time per token {time:+.0%}"
            return "AcceptLengthFell", f"{message} at equal batch sizes: the draft does not fit"
    matched = match(complete, strata)
    if matched is not None and matched.decode_time_per_token - CERTAINTY * matched.error >= least:
        time = math.expm1(matched.decode_time_per_token)
        return "HeavyLoss", f"decode time per token {time:+.0%} at equal batch sizes"
    return None


def _is_known(cell: Cell) -> bool:
    return min(cell.requests, cell.tokens, cell.steps, cell.decode_us) > 0
