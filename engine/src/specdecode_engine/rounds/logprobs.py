"""Log-probabilities of chosen tokens, from the target's unprocessed logits."""

from collections.abc import Sequence as Items
from dataclasses import dataclass

import torch
from torch import Tensor

from specdecode_engine.request import TokenLogprobs
from specdecode_engine.rounds.host_copy import start_copy


@dataclass(frozen=True, slots=True)
class Scores:
    """Log-probabilities of given tokens and of the likeliest; `...` are the tokens' dimensions."""

    tokens: Tensor  # [...] i64
    values: Tensor  # [...]
    top_ids: Tensor  # [..., top] i64
    top_values: Tensor  # [..., top]

    @classmethod
    def of(cls, logits: Tensor, tokens: Tensor, top: int) -> "Scores":
        """Normalise logits [..., vocab] float and keep those of `tokens` [...] and the `top`."""
        logprobs = torch.log_softmax(logits, dim=-1)
        values = logprobs.gather(-1, tokens[..., None])[..., 0]
        top_values, top_ids = torch.topk(logprobs, k=top, dim=-1)
        return cls(tokens, values, top_ids, top_values)

    @classmethod
    def join(cls, pieces: Items["Scores"]) -> "Scores":
        """Put pieces one behind the other, along the first dimension."""
        columns = zip(*(piece.columns for piece in pieces), strict=True)
        return cls(*(torch.cat(column) for column in columns))

    @property
    def columns(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All four tensors."""
        return self.tokens, self.values, self.top_ids, self.top_values

    def sent(self) -> "Scores":
        """Start the copy to the host."""
        return Scores(*(start_copy(column) for column in self.columns))

    def records(self, tops: Items[int]) -> list[tuple[TokenLogprobs, ...]]:
        """Read scores [rows, n] on the host; row i tells of the `tops[i]` likeliest."""
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
    """What a batch was asked for."""

    tops: tuple[int | None, ...]  # per batch row, None where nothing was asked
    scores: Scores  # [asking, nodes]

    def sent(self) -> "LogprobRows":
        """Start the copy to the host."""
        return LogprobRows(self.tops, self.scores.sent())

    def records(self) -> list[tuple[TokenLogprobs, ...] | None]:
        """Read on the host: a record per node for every batch row that asked."""
        asked = iter(self.scores.records([top for top in self.tops if top is not None]))
        return [None if top is None else next(asked) for top in self.tops]


def select_logprobs(logits: Tensor, tokens: Tensor, tops: Items[int | None]) -> LogprobRows | None:
    """Pick the log-probability of each token and of the likeliest ones, where asked for.

    Args:
        logits: [batch, nodes, vocab] float.
        tokens: [batch, nodes] i64.
        tops: for each batch row how many of the likeliest tokens to report; None for no record.
    """
    asking = [row for row, top in enumerate(tops) if top is not None]
    if not asking:
        return None
    chosen = torch.tensor(asking, device=logits.device)
    most = max(top for top in tops if top is not None)
    return LogprobRows(tuple(tops), Scores.of(logits[chosen], tokens[chosen], most))
