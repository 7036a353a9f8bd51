"""A sequential test of the acceptance of the first draft position.

Null hypothesis: whatever was seen before, the target accepts the next first draft token with
probability p >= p0. For an alternative q < p0 the likelihood ratio of n proposals, a of them
accepted,

    (q / p0)^a ((1 - q) / (1 - p0))^(n - a)

is then a nonnegative supermartingale with expectation 1 at most: its factor has the expectation 1
at p = p0 and falls with p. So is the mean over several q. By Ville's inequality it ever reaches 1/e
with probability e at most, so that it may be looked at after every step (Ville, 1939; Howard,
Ramdas, McAuliffe, Sekhon, "Time-uniform, nonparametric, nonasymptotic confidence sequences", 2021).
Reaching 1/e means that the upper bound of p, which holds at all times with probability 1 - e, is
below p0. With the alternatives above p0, the lower bound is above it.
"""

import math
from dataclasses import dataclass

ACCEPTANCE = 0.05  # p0: a draft whose first token is accepted less often does not fit
LOWER = (0.002, 0.01, 0.02, 0.03)
HIGHER = (0.08, 0.15, 0.3, 0.6, 0.9)


@dataclass(frozen=True, slots=True)
class FirstPosition:
    """Draft tokens at the first position, those of them that the target accepted, and requests.

    Only those that predict the target's own distribution count; see `Request.is_unrestricted`.
    """

    proposed: int = 0
    accepted: int = 0
    requests: int = 0  # with at least one of `proposed`

    def __add__(self, other: "FirstPosition") -> "FirstPosition":
        return FirstPosition(
            self.proposed + other.proposed,
            self.accepted + other.accepted,
            self.requests + other.requests,
        )

    @property
    def acceptance(self) -> float:
        """Share of accepted proposals; 0 without any."""
        return self.accepted / self.proposed if self.proposed else 0.0

    def is_below(self, error: float) -> bool:
        """Whether the upper bound of the acceptance, with this error, is below `ACCEPTANCE`."""
        # Otherwise every lower alternative is less likely than `ACCEPTANCE`.
        return self.acceptance < ACCEPTANCE and self._log_ratio(LOWER) >= -math.log(error)

    def is_above(self, error: float) -> bool:
        """Whether the lower bound of the acceptance, with this error, is above `ACCEPTANCE`."""
        return self.acceptance > ACCEPTANCE and self._log_ratio(HIGHER) >= -math.log(error)

    def _log_ratio(self, alternatives: tuple[float, ...]) -> float:
        """Logarithm of the mean likelihood ratio of the alternatives to `ACCEPTANCE`."""
        rejected = self.proposed - self.accepted
        logs = [
            self.accepted * math.log(each / ACCEPTANCE)
            + rejected * math.log((1 - each) / (1 - ACCEPTANCE))
            for each in alternatives
        ]
        most = max(logs)
        return most + math.log(sum(math.exp(one - most) for one in logs) / len(logs))


NO_PROPOSALS = FirstPosition()
