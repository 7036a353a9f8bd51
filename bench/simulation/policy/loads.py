"""A load for a while: how many requests, how long, and how well their drafts are accepted."""

from collections.abc import Sequence
from dataclasses import dataclass

DEEPEST = 7


@dataclass(frozen=True, slots=True)
class Crowd:
    """Requests of one kind; `rates` are conditional by position, `DEEPEST` of them."""

    share: float
    rates: tuple[float, ...]

    def expected(self) -> list[float]:
        """Tokens of a step of depth 0 … `DEEPEST`."""
        tokens = [1.0]
        survival = 1.0
        for rate in self.rates:
            survival *= rate
            tokens.append(tokens[-1] + survival)
        return tokens

    def lengths(self) -> list[float]:
        """Chance of accepting at most 0 … `DEEPEST` drafted tokens."""
        survival, within = 1.0, []
        for rate in self.rates:
            survival *= rate
            within.append(1.0 - survival)
        return [*within, 1.0]


@dataclass(frozen=True, slots=True)
class Segment:
    """A load that stays for `steps` steps of depth 3, as a span of time.

    Steps take the batch sizes of `sizes` in turn. With several `moods` all requests share one at a
    time, which changes every `mood_steps` steps at random; they are equally likely.
    """

    steps: int
    sizes: tuple[int, ...]
    moods: tuple[tuple[Crowd, ...], ...]
    kv_per_request: int = 512
    mood_steps: int = 8

    def expected(self, mood: int) -> list[float]:
        """Tokens per request in a step of depth 0 … `DEEPEST`."""
        table = [crowd.expected() for crowd in self.moods[mood]]
        shares = [crowd.share for crowd in self.moods[mood]]
        return [
            sum(share * row[k] for share, row in zip(shares, table, strict=True))
            for k in range(DEEPEST + 1)
        ]


def even(rate: float) -> tuple[float, ...]:
    """The same conditional rate at every position."""
    return (rate,) * DEEPEST


def crowd_of(*shares: tuple[float, float]) -> tuple[Crowd, ...]:
    """Kinds of requests by (share, rate)."""
    return tuple(Crowd(share, even(rate)) for share, rate in shares)


def load(steps: int, sizes: int | Sequence[int], rate: float, kv_per_request: int = 512) -> Segment:
    """A segment of like requests."""
    turns = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    return Segment(steps, turns, (crowd_of((1.0, rate)),), kv_per_request)
