"""What the scheduler hands out for one step and gets back: plain numbers, no torch."""

from dataclasses import dataclass
from typing import NamedTuple

from specdecode_engine.adaptive.policy import Decision
from specdecode_engine.batch.request import TokenLogprobs
from specdecode_engine.batch.sequence import Sequence


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Prompt tokens [start, end) of one sequence to compute now."""

    sequence: Sequence
    start: int
    end: int

    @property
    def is_last(self) -> bool:
        """Whether the chunk reaches the end of the tokens, so that the next one can be sampled."""
        return self.end == len(self.sequence.tokens)


class SchedulerOutput(NamedTuple):
    """One step: the prefill chunks, then the decode batch and its depth."""

    chunks: tuple[PrefillChunk, ...]
    decoding: tuple[Sequence, ...]
    decision: Decision | None  # None where nothing decodes
    kv_tokens: int  # with KV over all that decode, as far as the host knows

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all chunks."""
        return sum(chunk.end - chunk.start for chunk in self.chunks)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to run."""
        return not self.chunks and not self.decoding


class StepOutput(NamedTuple):
    """Tokens that a step produced for one sequence, before stops and caps are checked.

    `accepted` counts the draft tokens among them; a decode step emits accepted + 1. A tuple, as
    one is created per request and step.
    """

    sequence: Sequence
    token_ids: tuple[int, ...]
    drafted: int
    accepted: int
    logprobs: tuple[TokenLogprobs, ...] | None = None
