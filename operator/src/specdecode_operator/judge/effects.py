"""Effects of the candidate, pair by pair, from the flat arrays of `TurnEvidence`.

Every effect is antisymmetric: it changes its sign, and nothing else, if the two roles of its pair
are exchanged. The slope on load that a pair is adjusted by comes from earlier pairs, and a later
pair never changes an earlier one.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import mul

from specdecode_operator.judge.evidence import Stratum
from specdecode_operator.judge.trial_evidence import (
    OTHER,
    ROLES,
    ROW,
    Counts,
    RoleRow,
    TurnEvidence,
    column_of,
    row_of,
)

FEWEST_REQUESTS = 10
"""Of each role, for a pair to count."""
FEWEST_TOKENS = 20
"""Observations of each role, for a latency of a pair to count."""
Effect = tuple[float, float]
"""Of a pair, with its difference in load."""
_PAIRS = 1024
"""Latest ones whose effects are kept: a look is at the pairs of the one before, and one more."""


@dataclass(frozen=True, slots=True)
class LoadSlope:
    """How a latency follows the load, both on the logarithmic scale.

    `typical` counts as much as pairs with squared load differences of `weight` in sum; slopes are
    between 0 and `steepest`. Load differences saturate at `reach`.
    """

    typical: float
    weight: float
    steepest: float
    reach: float

    def saturated(self, load: float) -> float:
        """The part of a difference in load that explains a latency."""
        if math.isinf(self.reach):
            return load
        return self.reach * math.tanh(load / self.reach)

    def estimate(self, covariance: float, variance: float) -> float:
        """The slope from sums over earlier pairs."""
        slope = (covariance + self.typical * self.weight) / (variance + self.weight)
        return min(max(slope, 0.0), self.steepest)


DECODE_SLOPE = LoadSlope(0.15, 0.1, 0.25, 0.4)
"""Within a batch bucket: what the strata leave. Of pairs that differ by more than half a bucket,
only requests of the same buckets are compared, so a larger difference explains no more."""
FIRST_TOKEN_SLOPE = LoadSlope(0.0, 0.05, 1.5, math.inf)


@dataclass(frozen=True, slots=True)
class PairEffects:
    """Effects, each with the difference in load of its pair: log of the ratio of mean batch sizes.

    Load changes within a pair, and latencies follow it. The slope on the load comes from earlier
    pairs only, so the coin of a pair still flips the sign of its adjusted effect; around their
    means, so that a candidate that changes the load does not hide its effect in the slope. As with
    strata by batch size, the effect is the one at equal load.
    """

    pairs: tuple[Effect, ...]
    slope: LoadSlope
    explained: tuple[float, ...] = field(init=False, compare=False, repr=False)
    """The part of each effect that its difference in load explains."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "explained", tuple(self._explain()))

    def shifted(self, assumed: float) -> list[float]:
        """Effects at equal load, minus the assumed effect."""
        found = zip(self.pairs, self.explained, strict=True)
        return [effect - assumed - explained for (effect, _), explained in found]

    def _explain(self) -> Iterator[float]:
        count = effects = loads = products = squares = 0.0
        for effect, difference in self.pairs:
            load, several = self.slope.saturated(difference), max(count, 1.0)
            slope = self.slope.estimate(
                products - effects * loads / several, squares - loads * loads / several
            )
            yield slope * load
            count += 1.0
            effects += effect
            loads += load
            products += effect * load
            squares += load * load


def decode_effects(evidence: TurnEvidence) -> PairEffects:
    """log(candidate / baseline) of decode time per token, pair by pair, within equal strata."""
    sizes = _Sizes.of(evidence.strata)
    found = (_decode_effect(counts, sizes) for counts in evidence.pairs)
    return PairEffects(tuple(effect for effect in found if effect), DECODE_SLOPE)


@lru_cache(maxsize=_PAIRS)
def _decode_effect(counts: Counts, sizes: "_Sizes") -> Effect | None:
    if min(sum(column_of(counts, role, "requests")) for role in ROLES) < FEWEST_REQUESTS:
        return None
    effect = _within_strata(counts)
    return None if effect is None else (effect, sizes.load_effect(counts))


def _within_strata(counts: Counts) -> float | None:
    """Mean of the strata's log ratios, weighted by n₁n₂ / (n₁ + n₂) tokens (Cochran 1954).

    Only the pair itself is used: mean rates over the trial would contain content of other
    minutes, which batch sizes depend on. None: the roles share no stratum.
    """
    columns = [column_of(counts, role, name) for name in ("tokens", "decode_us") for role in ROLES]
    total = weights = 0.0
    for old_tokens, new_tokens, old_us, new_us in zip(*columns, strict=True):
        if min(old_tokens, new_tokens, old_us, new_us) > 0:
            weight = old_tokens * new_tokens / (old_tokens + new_tokens)
            total += weight * math.log(new_us / new_tokens * old_tokens / old_us)
            weights += weight
    return total / weights if weights else None


def first_token_effects(evidence: TurnEvidence) -> PairEffects:
    """log(candidate / baseline) of the mean time to first token."""
    sizes = _Sizes.of(evidence.strata)
    found = (_first_token_effect(counts, sizes) for counts in evidence.pairs)
    return PairEffects(tuple(effect for effect in found if effect), FIRST_TOKEN_SLOPE)


@lru_cache(maxsize=_PAIRS)
def _first_token_effect(counts: Counts, sizes: "_Sizes") -> Effect | None:
    old, new = rows = [row_of(counts, role) for role in ROLES]
    if min(row.first_tokens for row in rows) < FEWEST_TOKENS:
        return None
    if min(row.first_token_us for row in rows) <= 0:
        return None
    latency = math.log(new.first_token_us / new.first_tokens)
    latency -= math.log(old.first_token_us / old.first_tokens)
    return latency, sizes.load_effect(counts)


def share_effects(pairs: Sequence[Counts], part: str, whole: str) -> list[float]:
    """Difference of a share (`part` of `whole`, fields of `RoleRow`) between the roles."""
    effects = []
    for counts in pairs:
        (old_part, old_whole), (new_part, new_whole) = parts_and_wholes(counts, part, whole)
        if min(old_whole, new_whole) > 0:
            effects.append(new_part / new_whole - old_part / old_whole)
    return effects


def parts_and_wholes(counts: Counts, part: str, whole: str) -> tuple[tuple[int, int], ...]:
    """Both fields of `RoleRow`, of the baseline and of the candidate.

    Requests that failed were not answered, so they are added to a whole of those.
    """
    at_part, at_whole = (RoleRow._fields.index(name) for name in (part, whole))
    parts = counts[at_part : 2 * ROW : ROW] or (0, 0)
    wholes = counts[at_whole : 2 * ROW : ROW] or (0, 0)
    if part == "failed":
        wholes = (wholes[0] + parts[0], wholes[1] + parts[1])
    return tuple(zip(parts, wholes, strict=True))


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Batch sizes of the strata, and the place of those whose size is not known."""

    sizes: tuple[int, ...]
    other: int | None

    @classmethod
    def of(cls, strata: Sequence[Stratum]) -> "_Sizes":
        other = strata.index(OTHER) if OTHER in strata else None
        return cls(tuple(stratum.batch_size for stratum in strata), other)

    def load_effect(self, counts: Counts) -> float:
        """log(candidate / baseline) of the mean batch size of requests; 0: not known."""
        old, new = (self._mean(column_of(counts, role, "requests")) for role in ROLES)
        return math.log(new / old) if min(old, new) > 0.0 else 0.0

    def _mean(self, requests: Counts) -> float:
        count = sum(requests)
        if self.other is not None and self.other < len(requests):
            count -= requests[self.other]
        return sum(map(mul, requests, self.sizes)) / count if count else 0.0
