"""Effects of the candidate, pair by pair, from the flat arrays of `TurnEvidence`.

Every effect is antisymmetric: it changes its sign, and nothing else, if the two roles of its pair
are exchanged. Whatever a pair is adjusted by (the mean rates of strata, the slope on load) comes
from both roles alike or from earlier pairs, and a later pair never changes an earlier one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specdecode_operator.judge.evidence import Role
from specdecode_operator.judge.trial_evidence import (
    OTHER,
    ROLES,
    Counts,
    RoleRow,
    TurnEvidence,
    cell_of,
    row_of,
)

FEWEST_REQUESTS = 10
"""Of each role, for a pair to count."""
FEWEST_TOKENS = 20
"""Observations of each role, for a latency of a pair to count."""
DECODE_STEEPEST, FIRST_TOKEN_STEEPEST = 0.1, 1.5
"""Largest slopes on the load: of decode time within a batch bucket, and of time to first token."""
LOAD_PRIOR = 0.05
"""Weight of "load explains nothing" in the slope, as a sum of squared load differences."""

Pair = tuple[RoleRow, RoleRow]


@dataclass(frozen=True, slots=True)
class PairEffects:
    """Effects, each with the difference in load of its pair: log of the ratio of mean batch sizes.

    Load changes within a pair, and latencies follow it. The slope on the load comes from earlier
    pairs only, so the coin of a pair still flips the sign of its adjusted effect; around their
    means, so that a candidate that changes the load does not hide its effect in the slope. As with
    strata by batch size, the effect is the one at equal load.
    """

    pairs: tuple[tuple[float, float], ...]
    steepest: float

    def shifted(self, assumed: float) -> list[float]:
        """Effects at equal load, minus the assumed effect."""
        count = effects = loads = products = squares = 0.0
        shifted = []
        for effect, load in self.pairs:
            slope = 0.0
            if count:
                covariance = products - effects * loads / count
                slope = covariance / (squares - loads * loads / count + LOAD_PRIOR)
            shifted.append(effect - assumed - min(max(slope, 0.0), self.steepest) * load)
            count += 1.0
            effects += effect
            loads += load
            products += effect * load
            squares += load * load
        return shifted


def decode_effects(evidence: TurnEvidence) -> PairEffects:
    """log(candidate / baseline) of decode time per token, at the same mix of strata."""
    microseconds = [0] * len(evidence.strata)
    tokens = [0] * len(evidence.strata)
    effects = []
    for counts in evidence.pairs:
        cells = [
            [cell_of(counts, index, role) for index in range(len(evidence.strata))]
            for role in ROLES
        ]
        for row in cells:
            for index, cell in enumerate(row):
                microseconds[index] += cell.decode_us
                tokens[index] += cell.tokens
        if min(sum(cell.requests for cell in row) for row in cells) < FEWEST_REQUESTS:
            continue
        seen = [sum(cell.decode_us for cell in row) for row in cells]
        expected = [
            sum(
                microseconds[index] / tokens[index] * cell.tokens
                for index, cell in enumerate(row)
                if cell.tokens
            )
            for row in cells
        ]
        if min(*seen, *expected) > 0.0:
            old, new = (math.log(one / other) for one, other in zip(seen, expected, strict=True))
            effects.append((new - old, _load_effect(evidence, counts)))
    return PairEffects(tuple(effects), DECODE_STEEPEST)


def first_token_effects(evidence: TurnEvidence) -> PairEffects:
    """log(candidate / baseline) of the mean time to first token."""
    effects = []
    for counts in evidence.pairs:
        old, new = rows = _rows(counts)
        if min(row.first_tokens for row in rows) < FEWEST_TOKENS:
            continue
        if min(row.first_token_us for row in rows) <= 0:
            continue
        latency = math.log(new.first_token_us / new.first_tokens)
        latency -= math.log(old.first_token_us / old.first_tokens)
        effects.append((latency, _load_effect(evidence, counts)))
    return PairEffects(tuple(effects), FIRST_TOKEN_STEEPEST)


def share_effects(pairs: Sequence[Counts], part: str, whole: str) -> list[float]:
    """Difference of a share (`part` of `whole`, fields of `RoleRow`) between the roles."""
    effects = []
    for counts in pairs:
        old, new = (
            (getattr(row, part), getattr(row, whole) + (row.failed if part == "failed" else 0))
            for row in _rows(counts)
        )
        if min(old[1], new[1]) > 0:
            effects.append(new[0] / new[1] - old[0] / old[1])
    return effects


def shares(pairs: Sequence[Counts], part: str, whole: str) -> tuple[float, float]:
    """The same share over all pairs, of the baseline and of the candidate."""
    found = []
    for role in ROLES:
        rows = [row_of(counts, role) for counts in pairs]
        amount = sum(getattr(row, part) for row in rows)
        count = sum(getattr(row, whole) for row in rows) + (amount if part == "failed" else 0)
        found.append(amount / count if count else 0.0)
    return found[0], found[1]


def _rows(counts: Counts) -> Pair:
    return row_of(counts, Role.BASELINE), row_of(counts, Role.CANDIDATE)


def _load_effect(evidence: TurnEvidence, counts: Counts) -> float:
    """log(candidate / baseline) of the mean batch size of requests; 0 where it is not known."""
    means = []
    for role in ROLES:
        known = [
            (cell_of(counts, index, role).requests, stratum.batch_size)
            for index, stratum in enumerate(evidence.strata)
            if stratum != OTHER
        ]
        requests = sum(count for count, _ in known)
        means.append(sum(count * size for count, size in known) / requests if requests else 0.0)
    old, new = means
    return math.log(new / old) if min(means) > 0.0 else 0.0
