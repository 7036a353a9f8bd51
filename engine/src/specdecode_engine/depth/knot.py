"""One knot of a cost surface, and how it learns; and values in an order that must rise."""

import math
from collections.abc import Sequence

MOST_STEP = 0.3  # log-seconds that one round may ask for
FIRST_STEP = 2.0  # the same for the first one where nothing was measured
LEAST_GAIN = 0.02
# Rounds in a row that are this far off in one direction are no spikes: the machine has changed.
NO_SPIKE = 3
# What a measured point weighs, in rounds: rounds vary by a few percent, tables may be off by 20.
FIRST_DOUBT = 0.6
KV_GAIN = 0.002  # contexts grow slowly
TOLD = 0.004  # log-seconds of movement that are worth telling


class Knot:
    """Seconds at one depth and batch size, without the part of the KV.

    Starts at the measurement, or at what the surface says there (`new`). Each round of service
    moves it by a share of the clipped log-ratio, most of it at first and `LEAST_GAIN` in the end.
    """

    __slots__ = (
        "_far",
        "_log",
        "_seconds_mean",
        "_start",
        "_told",
        "_trust",
        "batch_size",
        "is_new",
        "kv_covariance",
        "kv_mean",
        "kv_variance",
        "rounds",
    )

    def __init__(self, batch_size: int, log_seconds: float, *, new: bool = False) -> None:
        self.batch_size = batch_size
        self.is_new = new
        self.rounds = 0
        self._trust = 0
        self._far = 0  # rounds in a row that asked for more than a step, below 0 for less time
        self._log = self._start = self._told = log_seconds
        self.kv_mean = self._seconds_mean = 0.0
        self.kv_variance = self.kv_covariance = 0.0

    def seconds(self) -> float:
        """Its value."""
        return math.exp(self._log)

    def moved(self) -> float:
        """Log-seconds away from where it started."""
        return self._log - self._start

    def shift_to(self, moved: float) -> None:
        """Stand this far from where it started."""
        self._log = self._start + moved

    def learn(self, log_ratio: float, kv_tokens: int, seconds: float) -> bool:
        """Take in seen over expected; return whether it has moved by something worth telling."""
        self.rounds += 1
        self._count(log_ratio)
        gain = max(1.0 / (self._trust + FIRST_DOUBT), LEAST_GAIN)
        if abs(log_ratio) > MOST_STEP:
            most = FIRST_STEP if self.is_new and self.rounds == 1 else MOST_STEP
            self._log += gain * min(max(log_ratio, -most), most)
        else:
            self._log += gain * log_ratio
            self._correlate(max(1.0 / self.rounds, KV_GAIN), kv_tokens, seconds)
        if self.rounds > 1 and abs(self._log - self._told) < TOLD:
            return False
        self._told = self._log
        return True

    def _count(self, log_ratio: float) -> None:
        """Trust the knot more with each round, and anew after some that were far off alike."""
        self._trust += 1
        if abs(log_ratio) <= MOST_STEP:
            self._far = 0
            return
        step = 1 if log_ratio > 0.0 else -1
        self._far = self._far + step if self._far * step > 0 else step
        if abs(self._far) >= NO_SPIKE:
            self._trust = 1

    def most_slope(self) -> float:
        """The steepest slope that leaves half of its time to the rest."""
        return 0.5 * self._seconds_mean / self.kv_mean if self.kv_mean else math.inf

    def tilt(self, change: float) -> None:
        """Give to a steeper slope what had been counted here."""
        rest = max(self.seconds() - change * self.kv_mean, 0.1 * self.seconds())
        self._start += math.log(rest) - self._log
        self._log = math.log(rest)

    def _correlate(self, gain: float, kv_tokens: int, seconds: float) -> None:
        """Follow the moments of time and KV, decayed."""
        if not self._seconds_mean:
            self.kv_mean, self._seconds_mean = float(kv_tokens), seconds
        away = kv_tokens - self.kv_mean
        self.kv_mean += gain * away
        self._seconds_mean += gain * (seconds - self._seconds_mean)
        self.kv_variance += gain * (away * away - self.kv_variance)
        self.kv_covariance += gain * (away * (seconds - self._seconds_mean) - self.kv_covariance)


def monotone(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Average neighbours that fall until none does (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        count = 1
        while pools and pools[-1][0] > value:
            other, heavy, members = pools.pop()
            value = (other * heavy + value * weight) / (heavy + weight)
            weight, count = weight + heavy, count + members
        pools.append((value, weight, count))
    return [value for value, _, count in pools for _ in range(count)]
