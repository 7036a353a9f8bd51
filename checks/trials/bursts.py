"""Load that trials must not be misled by: bursts, and content that sticks to pods."""

import random
from bisect import bisect
from dataclasses import dataclass
from itertools import accumulate

from checks.traffic.load import CLIENTS, Client
from checks.traffic.questions import QUESTIONS

TIMES = 4
"""Clients in a burst, as a multiple of the permanent ones."""
MEAN_DWELL_S = 15.0
"""A burst, and a pause between two, lasts so long on average: some turns of a short trial."""
_BORDERS = 2000


@dataclass(frozen=True, slots=True)
class Bursts:
    """Bursts and pauses of random, memoryless length, the same for the same seed."""

    borders_s: tuple[float, ...]
    """Ends of pauses and of bursts by turns, in seconds since the start."""

    @classmethod
    def drawn(cls, seed: int, mean_dwell_s: float = MEAN_DWELL_S) -> "Bursts":
        """Draw bursts for some hours."""
        drawn = random.Random(f"bursts {seed}")
        lengths = (drawn.expovariate(1.0 / mean_dwell_s) for _ in range(_BORDERS))
        return cls(tuple(accumulate(lengths)))

    def is_on(self, at_s: float) -> bool:
        """Whether a burst lasts at this moment."""
        return bisect(self.borders_s, at_s) % 2 == 1


def sticky_clients() -> tuple[Client, ...]:
    """The further clients of a burst.

    Each keeps its connection, and with it its pod, and sends a single question, so that pods get
    different content for as long as the connections last.
    """
    count = (TIMES - 1) * len(CLIENTS)
    return tuple(
        Client(number, number % 2 == 0, True, (QUESTIONS[number * 5 % len(QUESTIONS)],))
        for number in range(count)
    )
