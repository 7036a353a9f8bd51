"""Log-probabilities of sampled tokens and of prompts, from the target's unprocessed logits.

A prompt's are computed from the prefill rows that precede its tokens, a piece at a time: of each
piece only the logprobs of the prompt's own tokens and of the most likely ones are kept, so that
memory does not grow with the prompt.
"""

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from specdecode_engine.batch.request import TokenLogprobs
from specdecode_engine.batch.request_table import Rows
from specdecode_engine.batch.sequence import PrefillChunk, Sequence
from specdecode_engine.batch.staging import StagingBuffer
from specdecode_engine.model.layers.layers import widened
from specdecode_engine.steps.model_context import ModelContext
from specdecode_kernels.torch.by_row import log_softmax

PIECE_ROWS = 128
"""Prompt rows whose logits are in memory at the same time."""


class Scores(NamedTuple):
    """Logprobs of given tokens and of the most likely; `...` are the tokens' dimensions."""

    tokens: Tensor  # [...] i64
    values: Tensor  # [...]
    top_ids: Tensor  # [..., top] i64
    top_values: Tensor  # [..., top]

    @classmethod
    def of(cls, logits: Tensor, tokens: Tensor, top: int) -> "Scores":
        """Normalize logits [..., vocab] float; keep those of `tokens` [...] and the highest."""
        logprobs = log_softmax(logits)
        values = logprobs.gather(-1, tokens[..., None])[..., 0]
        top_values, top_ids = torch.topk(logprobs, k=top, dim=-1)
        return cls(tokens, values, top_ids, top_values)

    def map(self, function: Callable[[Tensor], Tensor]) -> "Scores":
        """Apply a function to every tensor."""
        return Scores(*map(function, self))

    def records(self, tops: Items[int]) -> list[tuple[TokenLogprobs, ...]]:
        """Read scores [rows, n] on the host; row i reports its `tops[i]` most likely tokens."""
        rows = zip(tops, *(column.tolist() for column in self), strict=True)
        return [
            tuple(
                TokenLogprobs(token, value, tuple(zip(ids[:top], scores[:top], strict=True)))
                for token, value, ids, scores in zip(*columns, strict=True)
            )
            for top, *columns in rows
        ]


@dataclass(frozen=True, slots=True)
class LogprobRows:
    """Logprobs of the batch rows that requested them."""

    tops: tuple[int | None, ...]  # per batch row, None where not requested
    scores: Scores  # [requesting rows, nodes]

    def map(self, function: Callable[[Tensor], Tensor]) -> "LogprobRows":
        """Apply a function to every tensor."""
        return LogprobRows(self.tops, self.scores.map(function))

    def records(self) -> list[tuple[TokenLogprobs, ...] | None]:
        """Read on the host: a record per node for every batch row that requested logprobs."""
        requested = iter(self.scores.records([top for top in self.tops if top is not None]))
        return [None if top is None else next(requested) for top in self.tops]


@dataclass(frozen=True, slots=True, eq=False)
class LogprobRequest:
    """The batch rows that requested logprobs."""

    tops: tuple[int | None, ...]  # per batch row, None where not requested
    rows: Tensor  # [requesting rows] i64

    @classmethod
    def stage(cls, sequences: Items[Sequence], staging: StagingBuffer) -> "LogprobRequest | None":
        """Stage the rows of a batch; None where no sequence requests logprobs."""
        tops = tuple([sequence.request.sampling.logprobs for sequence in sequences])
        rows = [row for row, top in enumerate(tops) if top is not None]
        return cls(tops, staging.put(rows)) if rows else None

    def select(self, logits: Tensor, tokens: Tensor) -> LogprobRows:
        """Select the logprob of each token and of the most likely ones, where requested.

        Args:
            logits: [batch, nodes, vocab] float.
            tokens: [batch, nodes] i64.
        """
        most = max(top for top in self.tops if top is not None)
        return LogprobRows(self.tops, Scores.of(logits[self.rows], tokens[self.rows], most))


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
            tokens = context.table.tokens_at(rows.req_indices[span], rows.positions[span] + 1)
            scores = _score(context, rows.req_indices[span], hidden[span], tokens, top)
            prompts.append(ScoredPrompt(chunk.sequence, top, scores))
        first_row += chunk.end - chunk.start
    return tuple(prompts)


def _wanted(chunk: PrefillChunk) -> range:
    """Positions of the chunk whose rows are needed.

    Rows in flight precede the chunk; a preempted sequence recomputes rows that it has scored.
    """
    unscored = chunk.sequence.unscored_rows
    return range(max(chunk.start, unscored.start), min(chunk.end, unscored.stop))


def _score(
    context: ModelContext, req_indices: Tensor, hidden: Tensor, tokens: Tensor, top: int
) -> Scores:
    """Score tokens [n] by the rows [n, hidden] before them; [1, n]."""
    scores = []
    for start in range(0, len(tokens), PIECE_ROWS):
        own = slice(start, start + PIECE_ROWS)
        with context.applied(req_indices[own]) as target:
            logits = widened(target.logits(hidden[own]))
        scores.append(Scores.of(logits, tokens[own], top))
    return Scores(*(torch.cat(columns)[None] for columns in zip(*scores, strict=True)))
