"""How the acceptance of one request differs from that of all: an offset of log-odds.

The rate of a position is that of all requests, its odds times e^offset. An offset is one step of
Newton's method from 0 with a normal prior: of a request's latest tokens, accepted less expected
ones, divided by their Fisher information plus 1. It is then multiplied by a gain, the slope of what
followed over what such offsets predicted. Where requests do not differ, the gain goes to 0.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import mul

from specdecode_engine.adaptive.acceptance import ALARM, MEMORY_STEPS

# Steps after which a request's own evidence counts half as much, roughly: texts change within an
# answer.
OWN_MEMORY_STEPS = 8
DUE = 1.0 / OWN_MEMORY_STEPS  # information below which next to nothing is known of a request
# Log-odds between two levels of offsets; requests of a level are verified alike.
LEVEL = 0.5


class RequestAcceptance:
    """What a policy knows of one running request.

    `most` is how many draft positions the next step can use, by the request's own limit and before
    its answer ends; its owner sets it. The rest is the policy's.
    """

    __slots__ = ("information", "mark", "most", "surplus")

    def __init__(self, most: int) -> None:
        self.most = most
        self.surplus = 0.0  # accepted less expected tokens, decayed
        self.information = 0.0  # decayed likewise
        # The offset in steps of `LEVEL`, times 2; odd where next to nothing is known of a request
        # any more and requests differ: its first position is to be tried again.
        self.mark = 0


class OffsetModel:
    """Learns offsets and their gain."""

    def __init__(self) -> None:
        self._predicted = self._followed = 0.0

    @property
    def gain(self) -> float:
        return max(self._followed / (self._predicted + ALARM), 0.0)

    @property
    def requests_differ(self) -> bool:
        """Whether requests are known to differ from one another."""
        return round(self.gain) > 0

    def learn(
        self,
        requests: Iterable[RequestAcceptance],
        accepted: Sequence[int],
        verified: Sequence[int],
        rates: Sequence[float],
    ) -> float:
        """Add the result of a step; return the mean offset that was expected of its positions.

        Args:
            accepted: tokens, by request.
            verified: draft positions, by request.
            rates: of all requests, by position.
        """
        expected = [0.0, *accumulate(rates)]
        information = [0.0, *accumulate([rate * (1.0 - rate) for rate in rates])]
        keep, gain = 1.0 - 1.0 / OWN_MEMORY_STEPS, self.gain
        scale, differ, predicted, followed = gain / LEVEL, self.requests_differ, 0.0, 0.0
        total = shift = 0.0
        for request, hits, tried in zip(requests, accepted, verified, strict=True):
            known, own = request.information, request.surplus
            reached = hits + (hits < tried)
            surplus, weight = hits - expected[reached], information[reached]  # 0 if not tried
            offset = own / (known + 1.0)
            total += weight
            shift += weight * offset
            followed += surplus * offset
            predicted += weight * offset * offset
            request.information = known = known * keep + weight
            request.surplus = own = own * keep + surplus
            request.mark = 2 * round(scale * own / (known + 1.0)) + (differ and known < DUE)
        keep = 1.0 - 1.0 / MEMORY_STEPS
        self._predicted = self._predicted * keep + predicted
        self._followed = self._followed * keep + followed
        return gain * shift / total if total else 0.0


def shifted(rates: Iterable[float], offset: float) -> list[float]:
    """Multiply the odds of rates by e^offset."""
    odds = math.exp(offset)
    return [odds * rate / (1.0 - rate + odds * rate) for rate in rates]


def survival(rates: Iterable[float], level: int) -> list[float]:
    """Probability that positions 1, 2, … and all before them are accepted, at a level."""
    return list(accumulate(shifted(rates, LEVEL * level), mul))
