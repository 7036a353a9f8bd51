"""Bounds that rest on the randomized order of turns alone, and hold at every look.

If the candidate costs exp(θ) times the baseline, exchanging the two turns of a pair turns its
effect θ + d into θ - d, whatever load, content and pods did in these minutes: d is fixed, and its
sign is the fair coin of `turns.turn_order`. So the signs of the effects minus θ are independent
coins, however the d depend on each other or on the past (randomization inference for switchback
experiments: Bojinov, Simchi-Levi and Zhao 2023; Fisher 1935). Betting on them,

    E_n = weighted mean over bets (c, w) of Π_{i ≤ n} (1 + c · tanh((x_i - θ) / (w · s_i))),

is a nonnegative martingale that starts at 1: it ever exceeds 1 / α with probability at most α
(Ville 1939; testing by betting: Shafer 2021; Waudby-Smith and Ramdas 2024). The scale s_i is the
median of |x_j - θ| over j ≤ i, which does not depend on signs. A bet is bounded, so a pair in
which the load changed costs one lost bet, however large its effect. The bets increase in x_i,
so the bound also holds if the true effect differs from pair to pair on one side of θ.
"""

import math
from bisect import insort
from collections.abc import Callable, Iterator, Sequence

BETS = ((1 / 4, 0.6, 0.7), (1 / 5, 0.98, 0.4), (11 / 20, 0.98, 2.5))
"""Weight, c and w: for pairs of which some are disturbed, for clear effects, and for small ones."""
MOST_GROWTH = math.log1p(max(stake for _, stake, _ in BETS))
"""Of the logarithm of a bet's wealth, in one pair."""
MOST_ABOVE = math.log(len(BETS)) + 1e-6
"""Of the logarithm of the sum of the bets, above that of the largest; with room for rounding."""
LEAST_SCALE = 1e-6
WIDEST = 1.0
"""Bounds of an effect are looked for within this distance, on the logarithmic scale."""
STEPS = 12
EXACT = 1e-9
"""Distance of a bound from a limit that it is just within or beyond."""

Shifted = Callable[[float], Sequence[float]]
"""Effects of the pairs minus an assumed effect."""


def evidence_path(effects: Sequence[float]) -> list[float]:
    """Logarithm of the largest wealth so far, after each pair, of bets that effects are above 0."""
    most, path = 0.0, []
    for wealths in _wealths(effects):
        most = max(most, _total(wealths))
        path.append(most)
    return path


def first_shown(effects: Sequence[float], alpha: float) -> int | None:
    """Pairs after which the effects are first shown to be above 0; None if they are not.

    The error of `alpha`, below 1, is that of all looks together. This is the first place at which
    `evidence_path` reaches log(1 / alpha). The sum of the bets is computed only where it may reach
    that, and pairs are left out that cannot bring it there.
    """
    threshold = -math.log(alpha)
    for pairs, wealths in enumerate(_wealths(effects), 1):
        most = max(wealths) + MOST_ABOVE
        if most >= threshold and _total(wealths) >= threshold:
            return pairs
        if most + (len(effects) - pairs) * MOST_GROWTH < threshold:
            return None
    return None


def _wealths(effects: Sequence[float]) -> Iterator[list[float]]:
    """Logarithm of the wealth of each bet, after each pair."""
    sizes: list[float] = []
    wealths = [math.log(weight) for weight, _, _ in BETS]
    for effect in effects:
        insort(sizes, abs(effect))
        middle = len(sizes) // 2
        scale = sizes[middle] if len(sizes) % 2 else 0.5 * (sizes[middle - 1] + sizes[middle])
        relative = effect / max(scale, LEAST_SCALE)
        wealths = [
            wealth + math.log1p(stake * math.tanh(relative / width))
            for wealth, (_, stake, width) in zip(wealths, BETS, strict=True)
        ]
        yield wealths


def _total(wealths: Sequence[float]) -> float:
    """Logarithm of the sum of the bets."""
    top = max(wealths)
    return top + math.log(sum(math.exp(wealth - top) for wealth in wealths))


def is_above(effects: Sequence[float], alpha: float) -> bool:
    """Whether the effects are shown to be above 0, at an error of `alpha` over all looks."""
    return first_shown(effects, alpha) is not None


def fewest_pairs(alpha: float) -> int:
    """Pairs after which equal, clear effects can first be shown at this error."""
    pairs = 1
    while not is_above([1.0] * pairs, alpha):
        pairs += 1
    return pairs


def lower_bound(
    shifted: Shifted, centre: float, alpha: float, limits: Sequence[float] = ()
) -> float:
    """Largest effect below `centre` that the pairs are shown to be above, or `WIDEST` away.

    At `limits` the bound is exact: it is above a limit if and only if the limit is excluded.
    """
    return _bound(shifted, centre, alpha, -1.0, limits)


def upper_bound(
    shifted: Shifted, centre: float, alpha: float, limits: Sequence[float] = ()
) -> float:
    """Smallest effect above `centre` that the pairs are shown to be below, or `WIDEST` away."""
    return _bound(shifted, centre, alpha, 1.0, limits)


def _bound(
    shifted: Shifted, centre: float, alpha: float, side: float, limits: Sequence[float]
) -> float:
    """Bisect the distance from the centre to what is excluded.

    Scales depend on the assumed effect, so an effect may be kept although a nearer one is
    excluded; hence the limits that verdicts depend on are tested by themselves.
    """

    def is_excluded(distance: float) -> bool:
        away = shifted(centre + side * distance)
        return is_above([-side * effect for effect in away], alpha)

    near, far = 0.0, WIDEST
    if is_excluded(WIDEST):
        for _ in range(STEPS):
            middle = 0.5 * (near + far)
            near, far = (near, middle) if is_excluded(middle) else (middle, far)
    for distance in sorted(side * (limit - centre) for limit in limits):
        if distance > 0.0:
            is_out = is_excluded(distance)
            far = min(far, distance - EXACT) if is_out else max(far, distance + EXACT)
    return centre + side * far


def centre_of(effects: Sequence[float]) -> float:
    """Hodges-Lehmann estimate of the common effect: median of the means of two; robust."""
    means = sorted(0.5 * (one + other) for at, one in enumerate(effects) for other in effects[at:])
    middle = len(means) // 2
    return means[middle] if len(means) % 2 else 0.5 * (means[middle - 1] + means[middle])
