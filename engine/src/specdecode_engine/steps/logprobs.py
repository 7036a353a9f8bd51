"""Log-probabilities of chosen tokens, from the target's unprocessed logits."""

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass

import torch
from torch import Tensor

from specdecode_engine.batch.request import TokenLogprobs
from specdecode_kernels.torch.by_row import log_softmax


@dataclass(frozen=True, slots=True)
class Scores:
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

    @classmethod
    def join(cls, pieces: Items["Scores"]) -> "Scores":
        """Concatenate pieces along the first dimension."""
        columns = zip(*(piece.columns for piece in pieces), strict=True)
        return cls(*(torch.cat(column) for column in columns))

    @property
    def columns(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All four tensors."""
        return self.tokens, self.values, self.top_ids, self.top_values

    def map(self, function: Callable[[Tensor], Tensor]) -> "Scores":
        """Apply a function to every tensor."""
        return Scores(*(function(column) for column in self.columns))

    def records(self, tops: Items[int]) -> list[tuple[TokenLogprobs, ...]]:
        """Read scores [rows, n] on the host; row i reports its `tops[i]` most likely tokens."""
        rows = zip(tops, *(column.tolist() for column in self.columns), strict=True)
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


def select_logprobs(logits: Tensor, tokens: Tensor, tops: Items[int | None]) -> LogprobRows | None:
    """Select the logprob of each token and of the most likely ones, where requested.

    Args:
        logits: [batch, nodes, vocab] float.
        tokens: [batch, nodes] i64.
        tops: how many of the most likely tokens to report per batch row; None for no record.
    """
    requesting = [row for row, top in enumerate(tops) if top is not None]
    if not requesting:
        return None
    chosen = torch.tensor(requesting, device=logits.device)
    most = max(top for top in tops if top is not None)
    return LogprobRows(tuple(tops), Scores.of(logits[chosen], tokens[chosen], most))
