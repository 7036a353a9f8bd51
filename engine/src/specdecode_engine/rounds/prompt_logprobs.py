"""Log-probabilities of a prompt's tokens, from the rows of extend rounds that precede them.

Logits are computed for the rows of sequences that ask, and a piece at a time: of each piece the
prompt's own tokens and the likeliest stay, so that memory does not grow with the prompt.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from specdecode_engine.forward.llama import Llama
from specdecode_engine.rounds.logprobs import Scores
from specdecode_engine.rounds.parts import Parts
from specdecode_engine.sequence import Sequence
from specdecode_engine.slots import Rows
from specdecode_engine.step import Chunk

PIECE_ROWS = 128
"""Rows whose logits exist at once."""


@dataclass(frozen=True, slots=True)
class ScoredPrompt:
    """Scores of the next tokens of one prompt, on their way to the host."""

    sequence: Sequence
    top: int  # likeliest tokens to tell of besides
    scores: Scores  # [1, tokens]

    def sent(self) -> "ScoredPrompt":
        """Start the copy to the host."""
        return ScoredPrompt(self.sequence, self.top, self.scores.sent())

    def collect(self) -> None:
        """Hand the arrived scores to their sequence, unless it has ended."""
        if self.sequence.finish_reason is None:
            self.sequence.prompt_logprobs += self.scores.records([self.top])[0]


def score_prompts(
    parts: Parts, chunks: tuple[Chunk, ...], rows: Rows, hidden: Tensor
) -> tuple[ScoredPrompt, ...]:
    """Score what the chunks' rows tell of the prompts that ask and have not been told.

    Args:
        rows: of all chunks, one behind the other.
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
            tokens = parts.table.tokens_at(rows.slots[span], rows.positions[span] + 1)
            scores = _score(parts.target, hidden[span], tokens, top)
            prompts.append(ScoredPrompt(chunk.sequence, top, scores))
        first_row += chunk.end - chunk.start
    return tuple(prompts)


def _wanted(chunk: Chunk) -> range:
    """Positions of the chunk whose rows are needed.

    What is in flight lies before the chunk, and a retracted sequence computes again what it has.
    """
    unscored = chunk.sequence.unscored_rows
    return range(max(chunk.start, unscored.start), min(chunk.end, unscored.stop))


def _score(target: Llama, hidden: Tensor, tokens: Tensor, top: int) -> Scores:
    """Score tokens [n] by the rows [n, hidden] before them; [1, n]."""
    pieces = zip(torch.split(hidden, PIECE_ROWS), torch.split(tokens, PIECE_ROWS), strict=True)
    scores = Scores.join([Scores.of(target.logits(rows), ids, top) for rows, ids in pieces])
    return Scores(*(column[None] for column in scores.columns))
