"""The confidence head of a DSpark draft: how likely the target is to accept each position.

With x the hidden state of a position's row and a = W1[token before], W1 being the embedding of the
Markov head, the token of the position is accepted, if all before it are, with the probability

    c = sigmoid(w [x, a] + b)

and a chain is accepted up to a position with the product of c over it and those before. Some heads
read x alone. Nothing is calibrated: the order of the products counts, not their size.

Sources: deepseek-ai/DeepSpec, `predict_confidence_step`; vLLM, `DSparkConfidenceHead`, which also
computes in float32.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from specdecode_engine.model.checkpoint.checkpoint import Shapes
from specdecode_engine.model.target.weights import Weights, linear_shapes

NAME = "confidence_head.proj"


@dataclass(frozen=True, slots=True, eq=False)
class ConfidenceHead:
    """A head with its weights."""

    weight: Tensor  # [1, hidden] or [1, hidden + rank]
    bias: Tensor  # [1]

    @staticmethod
    def shapes(inputs: int) -> Shapes:
        """Name the tensors of a head that reads `inputs` values of a row."""
        return linear_shapes(NAME, 1, inputs, bias=True)

    @classmethod
    def take(cls, inputs: int, weights: Weights) -> "ConfidenceHead":
        return cls(*map(weights.take, cls.shapes(inputs)))

    def log_survival(self, hidden: Tensor, before: Tensor, embedding: Tensor | None) -> Tensor:
        """Return the log-probability that a chain is accepted up to each of its tokens.

        Args:
            hidden: [B, S, hidden], of the positions' rows.
            before: [B, S] i64, the token before each position, in ids of the target.
            embedding: [vocab, rank], of the Markov head; None: there is none.

        Returns:
            [B, S] f32, minus infinity where it is not a number.
        """
        read = hidden.float()
        if embedding is not None and self.weight.shape[1] > read.shape[2]:
            read = torch.cat((read, functional.embedding(before, embedding).float()), dim=2)
        logits = functional.linear(read, self.weight.float(), self.bias.float()).squeeze(2)
        confidence = torch.nan_to_num(functional.logsigmoid(logits), nan=-torch.inf)
        return confidence.cumsum(dim=1)
