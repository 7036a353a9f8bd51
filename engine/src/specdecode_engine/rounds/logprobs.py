"""Log-probabilities of chosen tokens, from the target's unprocessed logits."""

from collections.abc import Sequence as Items
from dataclasses import dataclass

import torch
from torch import Tensor

from specdecode_engine.request import TokenLogprobs


@dataclass(frozen=True, slots=True)
class LogprobRows:
    """What was asked for, still on the device; one row per sequence that asked."""

    tops: tuple[int | None, ...]  # per batch row, None where nothing was asked
    tokens: Tensor  # [asking, nodes] i64
    values: Tensor  # [asking, nodes]
    top_ids: Tensor  # [asking, nodes, top]
    top_values: Tensor  # [asking, nodes, top]

    def records(self) -> list[tuple[TokenLogprobs, ...] | None]:
        """Copy to the host: a record per node for every batch row that asked."""
        records: list[tuple[TokenLogprobs, ...] | None] = [None] * len(self.tops)
        asking = [row for row, top in enumerate(self.tops) if top is not None]
        tensors = (self.tokens, self.values, self.top_ids, self.top_values)
        for row, *columns in zip(asking, *(tensor.tolist() for tensor in tensors), strict=True):
            top = self.tops[row]
            records[row] = tuple(
                TokenLogprobs(token, value, tuple(zip(ids[:top], scores[:top], strict=True)))
                for token, value, ids, scores in zip(*columns, strict=True)
            )
        return records


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
    logprobs = torch.log_softmax(logits[chosen], dim=-1)
    values = logprobs.gather(-1, tokens[chosen][..., None])[..., 0]
    most = max(top for top in tops if top is not None)
    top_values, top_ids = torch.topk(logprobs, k=most, dim=-1)
    return LogprobRows(tuple(tops), tokens[chosen], values, top_ids, top_values)
