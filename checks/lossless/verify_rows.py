"""A policy that lets each request of a step verify a random number of its drafted nodes."""

import random

from specdecode_engine.batch.sequence import Sequence
from specdecode_engine.batch.shapes import DraftShape
from specdecode_engine.batch.verify_rows import rows_within_limits


class RandomVerifyRows:
    """Draws from 1, the root alone, to all nodes within a request's limit; seldom uniformly."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def __call__(self, shape: DraftShape, sequences: tuple[Sequence, ...]) -> tuple[int, ...]:
        most = rows_within_limits(shape, sequences)
        if self._rng.random() < 0.2:
            return most
        return tuple(self._rng.randint(1, count) for count in most)
