"""Log-probabilities of chosen tokens, from the target's unprocessed logits."""

from collections.abc import Sequence as Items

import torch
from torch import Tensor

from specdecode_engine.request import TokenLogprobs


def gather_logprobs(
    logits: Tensor, tokens: Tensor, tops: Items[int | None]
) -> list[tuple[TokenLogprobs, ...] | None]:
    """Return the log-probability of each token and of the likeliest ones, where asked for.

    Args:
        logits: [batch, nodes, vocab] float.
        tokens: [batch, nodes] i64.
        tops: for each batch row how many of the likeliest tokens to report; None for no record.

    Returns:
        A record per node for every batch row that asked.
    """
    asking = [row for row, top in enumerate(tops) if top is not None]
    if not asking:
        return [None] * len(tops)
    chosen = torch.tensor(asking, device=logits.device)
    logprobs = torch.log_softmax(logits[chosen], dim=-1)
    tokens = tokens[chosen]
    values = logprobs.gather(-1, tokens[..., None])[..., 0].tolist()
    top_values, top_ids = torch.topk(logprobs, k=max(tops[row] or 0 for row in asking), dim=-1)
    records: list[tuple[TokenLogprobs, ...] | None] = [None] * len(tops)
    columns = zip(
        asking, tokens.tolist(), values, top_ids.tolist(), top_values.tolist(), strict=True
    )
    for row, *node_columns in columns:
        top = tops[row]
        records[row] = tuple(
            TokenLogprobs(token, value, tuple(zip(ids[:top], scores[:top], strict=True)))
            for token, value, ids, scores in zip(*node_columns, strict=True)
        )
    return records
