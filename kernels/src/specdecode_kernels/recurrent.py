"""Records of the gated delta rule: parameters, states of requests, and the rows of a forward.

Every v head of a layer keeps a matrix S [k_dim, v_dim], which each token t of a text changes:

    x_t = silu(sum_j w_j * u_(t - width + 1 + j)), which holds q_t, k_t and v_t
    q_t = l2norm(q_t) / sqrt(k_dim);  k_t = l2norm(k_t)
    a_t = exp(-decay * softplus(g_t + dt_bias));  b_t = sigmoid(beta_t)
    S = a_t * S;  S = S + k_t (b_t * (v_t - S^T k_t))^T;  y_t = S^T q_t

The state of a request is S after its kept tokens, and the last width - 1 inputs u before the
convolution. A forward keeps some of its rows at once; the inputs of drafted ones are stored, and
`keep_drafted` folds those that were accepted into the state, in the same order and to the same bits
as a forward that keeps them.
Source: Yang, Kautz, Hatamizadeh, "Gated delta networks: improving Mamba2 with delta rule", 2024;
the convolution and the gates are those of Qwen3-Next.

A short convolution (LFM2) is the same without heads: x is its sum, without silu, and y is x.
Which of them the layers of a model are is a `RecurrentRule`.
Letters: L layers, B requests, N nodes of a draft, root included.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from torch import Tensor

NORM_EPS = 1e-6
"""Of l2norm(x) = x / sqrt(sum(x^2) + eps)."""


class RecurrentRule(IntEnum):
    """What a layer computes of its inputs; numbers as in gated_delta.h."""

    GATED_DELTA = 0
    CONVOLUTION = 1


class DeltaShape(NamedTuple):
    """Heads of one layer; every k head serves v_heads / k_heads consecutive v heads.

    A convolution has one v head of all its channels, and a k head without numbers.
    """

    k_heads: int
    v_heads: int
    k_dim: int
    v_dim: int
    conv_width: int  # inputs that an output of the convolution reads
    rule: RecurrentRule = RecurrentRule.GATED_DELTA

    @classmethod
    def of_convolution(cls, channels: int, conv_width: int) -> "DeltaShape":
        """Return the shape of a short convolution."""
        return cls(1, 1, 0, channels, conv_width, RecurrentRule.CONVOLUTION)

    @property
    def gates(self) -> int:
        """Numbers of one token's gates."""
        return 0 if self.rule == RecurrentRule.CONVOLUTION else 2 * self.v_heads

    @property
    def channels(self) -> int:
        """Inputs of the convolution of one token: q, k and v of all heads."""
        return 2 * self.k_heads * self.k_dim + self.v_heads * self.v_dim


@dataclass(frozen=True, slots=True, eq=False)
class DeltaParams:
    """Parameters of all layers with a state, contiguous; f32, f64 for such models."""

    shape: DeltaShape
    conv: Tensor  # [L, conv_width, channels], the weights of the oldest input first
    decay: Tensor  # [L, v_heads]: exp(A_log); of no effect on a convolution
    dt_bias: Tensor  # [L, v_heads]; likewise
    conv_bias: Tensor | None = None  # [L, channels]


@dataclass(frozen=True, slots=True, eq=False)
class DeltaState:
    """States of all layers and requests, contiguous; a request has a slot.

    Inputs and drafted rows are of the model's type, matrices f32, or f64 for such models. What is
    stored of a slot's drafted rows is good until the next forward with the slot.
    """

    inputs: Tensor  # [L, slots, conv_width - 1, channels], the oldest first
    matrices: Tensor  # [L, slots, v_heads, k_dim, v_dim]
    drafted: Tensor  # [L, slots, N - 1, channels], inputs of the nodes after the root
    drafted_gates: Tensor  # [L, slots, N - 1, gates]


class DeltaRows(NamedTuple):
    """Which rows a forward has: consecutive tokens, or a draft's nodes, of one request each.

    Requests differ from each other, but for padding. Slots and cu_seqlens are contiguous, and so is
    each row of an ancestry; they may change between calls.
    """

    slots: Tensor  # [rows] i64, the slot of each row
    cu_seqlens: Tensor  # [B + 1] i64, where the rows of each request begin, and their end
    batch_size: int
    num_chunks: int
    """Of the first so many requests all rows are kept: prompt chunks. Of the others the first one
    is kept, the root of a draft; the others are its nodes."""
    ancestry: Tensor | None = None
    """[B, N, N] bool, without chunks: row j marks node j of a tree and its ancestors, which stand
    before it, the root among them. None: every row follows the one before it."""
