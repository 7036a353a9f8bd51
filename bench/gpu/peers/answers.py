"""Which answers are right: those along the cycle, or those recorded for a trained pair."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from bench.gpu.peers.checkpoint.cycle import ANSWERS_FILE, Cycle, count_wrong
from bench.gpu.peers.loads import (
    Lengths,
    ScheduledRequest,
    Stage,
    draw_prompts,
    draw_schedule,
)


class KnownAnswers(Protocol):
    """Prompts whose greedy answers are known."""

    def prompts(self, batch: int, length: int, seed: str) -> list[list[int]]:
        """Return prompts of so many tokens."""

    def schedule(
        self, lengths: Lengths, stages: Sequence[Stage], seed: int
    ) -> list[ScheduledRequest]:
        """Return requests that come and go."""

    def count_wrong(self, prompt: Sequence[int], answer: Sequence[int]) -> int:
        """Count the tokens of an answer that are not the target's."""


class CycleAnswers:
    """Every token is the successor of the one before."""

    def __init__(self, cycle: Cycle) -> None:
        self._order, self._successors = cycle.order, cycle.successors()

    def prompts(self, batch: int, length: int, seed: str) -> list[list[int]]:
        """Draw tokens of the cycle."""
        return draw_prompts(self._order, batch, length, seed)

    def schedule(
        self, lengths: Lengths, stages: Sequence[Stage], seed: int
    ) -> list[ScheduledRequest]:
        """Draw requests at positions of the cycle."""
        return draw_schedule(self._order, lengths, stages, seed)

    def count_wrong(self, prompt: Sequence[int], answer: Sequence[int]) -> int:
        """Count tokens that do not follow."""
        return count_wrong(self._successors, prompt, answer)


class RecordedAnswers:
    """Prompts with the greedy answers of another implementation.

    No prompt is returned twice before all were returned, so that no prefix cache has one.
    """

    def __init__(self, answers: dict[tuple[int, ...], list[int]]) -> None:
        self._answers, self._waiting = answers, list[tuple[int, ...]]()

    @classmethod
    def read(cls, file: Path) -> "RecordedAnswers":
        """Read `[[prompt, answer], ...]`."""
        pairs = json.loads(file.read_text())
        return cls({tuple(prompt): answer for prompt, answer in pairs})

    def prompts(self, batch: int, length: int, seed: str) -> list[list[int]]:
        """Return the next prompts.

        Raises:
            ValueError: the recorded prompts have another length.
        """
        if len(self._waiting) < batch:
            self._waiting = [*self._answers]
            random.Random(seed).shuffle(self._waiting)
        found = [list(self._waiting.pop()) for _ in range(batch)]
        if len(found[0]) != length:
            raise ValueError(f"{len(found[0])} tokens are recorded as a prompt, {length} requested")
        return found

    def schedule(
        self, lengths: Lengths, stages: Sequence[Stage], seed: int
    ) -> list[ScheduledRequest]:
        """Refuse requests that come and go.

        Raises:
            NotImplementedError: recorded prompts are not at positions of a cycle.
        """
        raise NotImplementedError("requests that come and go need a checkpoint with a cycle")

    def count_wrong(self, prompt: Sequence[int], answer: Sequence[int]) -> int:
        """Compare an answer with the recorded one; tokens beyond its end are wrong."""
        known = self._answers[tuple(prompt)]
        same = sum(one == other for one, other in zip(answer, known, strict=False))
        return len(answer) - same


def read_answers(checkpoint: Path) -> KnownAnswers:
    """Read what a checkpoint answers."""
    recorded = checkpoint / ANSWERS_FILE
    if recorded.exists():
        return RecordedAnswers.read(recorded)
    return CycleAnswers(Cycle.read(checkpoint))
