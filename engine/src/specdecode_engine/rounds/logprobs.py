"""Log-probabilities of chosen tokens, from the target's unprocessed logits."""

import torch
from torch import Tensor

from specdecode_engine.request import TokenLogprobs


def gather_logprobs(logits: Tensor, tokens: Tensor, top: int) -> list[list[TokenLogprobs]]:
    """Return the log-probability of each token and of the `top` likeliest ones.

    Args:
        logits: [batch, nodes, vocab] float.
        tokens: [batch, nodes] i64.
        top: how many of the likeliest tokens to report.

    Returns:
        A list per batch row of a record per node.
    """
    logprobs = torch.log_softmax(logits, dim=-1)
    chosen = logprobs.gather(-1, tokens[..., None])[..., 0].tolist()
    values, ids = torch.topk(logprobs, k=top, dim=-1)
    rows = zip(tokens.tolist(), chosen, ids.tolist(), values.tolist(), strict=True)
    return [
        [
            TokenLogprobs(token, value, tuple(zip(top_ids, top_values, strict=True)))
            for token, value, top_ids, top_values in zip(*row, strict=True)
        ]
        for row in rows
    ]
