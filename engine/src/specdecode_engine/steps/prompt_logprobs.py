"""Log-probabilities of a prompt's tokens, from the prefill rows that precede them.

Logits are computed for the rows of sequences that request them, and a piece at a time: of each
piece only the logprobs of the prompt's own tokens and of the most likely ones are kept, so that
memory does not grow with the prompt.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specdecode_engine.batch.request_table import Rows
from specdecode_engine.batch.scheduler_output import PrefillChunk
from specdecode_engine.batch.sequence import Sequence
from specdecode_engine.model.llama import Llama
from specdecode_engine.steps.logprobs import Scores
from specdecode_engine.steps.model_context import ModelContext

PIECE_ROWS = 128
"""Rows whose logits are in memory at the same time."""


@dataclass(frozen=True, slots=True)
class ScoredPrompt:
    """Logprobs of consecutive tokens of one prompt."""

    sequence: Sequence
    top: int  # most likely tokens to report as well
    scores: Scores  # [1, tokens]

    def map(self, function: Callable[[Tensor], Tensor]) -> "ScoredPrompt":
        """Apply a function to every tensor."""
        return ScoredPrompt(self.sequence, self.top, self.scores.map(function))

    def collect(self) -> None:
        """Append the scores, now on the host, to their sequence unless it has ended."""
        if self.sequence.finish_reason is None:
            self.sequence.prompt_logprobs += self.scores.records([self.top])[0]


def score_prompts(
    context: ModelContext, chunks: tuple[PrefillChunk, ...], rows: Rows, hidden: Tensor
) -> tuple[ScoredPrompt, ...]:
    """Score the prompt tokens that follow the chunks' rows, where requested and not yet returned.

    Args:
        rows: of all chunks, concatenated.
        hidden: [rows, hidden], after the final norm.
    """
    prompts: list[ScoredPrompt] = []
    first_row = 0
    for chunk in chunks:
        wanted = _wanted(chunk)
        top = chunk.sequence.request.sampling.prompt_logprobs
        if wanted and top is not None:
            shift = first_row - chunk.start
            span = slice(wanted.start + shift, wanted.stop + shift)
            tokens = context.table.tokens_at(rows.slots[span], rows.positions[span] + 1)
            scores = _score(context.target, hidden[span], tokens, top)
            prompts.append(ScoredPrompt(chunk.sequence, top, scores))
        first_row += chunk.end - chunk.start
    return tuple(prompts)


def _wanted(chunk: PrefillChunk) -> range:
    """Positions of the chunk whose rows are needed.

    Rows in flight precede the chunk; a preempted sequence recomputes rows that it has scored.
    """
    unscored = chunk.sequence.unscored_rows
    return range(max(chunk.start, unscored.start), min(chunk.end, unscored.stop))


def _score(target: Llama, hidden: Tensor, tokens: Tensor, top: int) -> Scores:
    """Score tokens [n] by the rows [n, hidden] before them; [1, n]."""
    pieces = zip(torch.split(hidden, PIECE_ROWS), torch.split(tokens, PIECE_ROWS), strict=True)
    scores = Scores.join([Scores.of(target.logits(rows), ids, top) for rows, ids in pieces])
    return Scores(*(column[None] for column in scores.columns))
