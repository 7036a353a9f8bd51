"""The Markov head of a DSpark draft: what the token before adds to the logits of a position.

With a = W1[token before] and x the hidden state of the position's row, the head adds W2 b, where

    vanilla    b = a
    gated      b = sigmoid(P [x, a]) a
    rnn        g, c, o = P [s, a, x];  s = sigmoid(g) s + (1 - sigmoid(g)) tanh(c);  b = tanh(o)

and s, the state of the tokens before in the block, begins as zero. P includes its bias.

Source: deepseek-ai/DeepSpec, `markov_head.py`.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from specdecode_engine.model.checkpoint.checkpoint import Shapes
from specdecode_engine.model.layers.layers import Linear, widened
from specdecode_engine.model.layers.linears import MapKind
from specdecode_engine.model.target.weights import Weights, linear_shapes

EMBEDDING = "markov_head.markov_w1.weight"
HEAD = "markov_head.markov_w2"


class MarkovKind(StrEnum):
    VANILLA = "vanilla"
    GATED = "gated"
    RNN = "rnn"

    @property
    def projection(self) -> str | None:
        """The name of P, if there is one."""
        names = {MarkovKind.GATED: "gate_proj", MarkovKind.RNN: "joint_proj"}
        return f"markov_head.{names[self]}" if self in names else None


@dataclass(frozen=True, slots=True)
class MarkovConfig:
    kind: MarkovKind
    rank: int

    def shapes(self, hidden: int, vocab: int, draft_vocab: int) -> Shapes:
        """Name the tensors."""
        rank = self.rank
        shapes: Shapes = {EMBEDDING: (vocab, rank)}
        shapes |= linear_shapes(HEAD, draft_vocab, rank, bias=False)
        if self.kind is MarkovKind.GATED:
            shapes |= linear_shapes("markov_head.gate_proj", rank, hidden + rank, bias=True)
        elif self.kind is MarkovKind.RNN:
            outputs, inputs = 3 * rank, 2 * rank + hidden
            shapes |= linear_shapes("markov_head.joint_proj", outputs, inputs, bias=True)
        return shapes


class MarkovStep(NamedTuple):
    """What the head makes of one position of some rows."""

    bias: Tensor  # [rows, draft_vocab] f32 or f64, added to the logits
    state: Tensor  # [rows, rank], read at the next position


@dataclass(frozen=True, slots=True, eq=False)
class MarkovHead:
    """A head with its weights."""

    kind: MarkovKind
    embedding: Tensor  # [vocab, rank], by ids of the target
    head: Linear  # [draft_vocab, rank]
    projection: Linear | None

    @classmethod
    def take(cls, config: MarkovConfig, weights: Weights) -> "MarkovHead":
        name = config.kind.projection
        projection = None if name is None else weights.linear(name)
        return cls(
            config.kind,
            weights.take(EMBEDDING),
            weights.linear(HEAD, kind=MapKind.HEAD),
            projection,
        )

    def first_state(self, rows: int) -> Tensor:
        """Return the state of the first position of `rows` blocks."""
        return self.embedding.new_zeros(rows, self.embedding.shape[1])

    def step(self, tokens: Tensor, hidden: Tensor | None, state: Tensor) -> MarkovStep:
        """Compute one position.

        Args:
            tokens: [rows] i64, the tokens before it, in ids of the target.
            hidden: hidden states of its rows [rows, hidden]; a vanilla head reads none.
            state: of the position before.
        """
        before = functional.embedding(tokens, self.embedding)
        if self.projection is None:
            return MarkovStep(widened(self.head(before)), state)
        assert hidden is not None
        hidden = hidden.to(before.dtype)
        if self.kind is MarkovKind.GATED:
            gate = self.projection(torch.cat((hidden, before), dim=-1)).sigmoid()
            return MarkovStep(widened(self.head(gate * before)), state)
        joint = self.projection(torch.cat((state, before, hidden), dim=-1))
        gate, candidate, output = joint.chunk(3, dim=-1)
        kept = gate.sigmoid()
        state = kept * state + (1 - kept) * candidate.tanh()
        return MarkovStep(widened(self.head(output.tanh())), state)
