"""Records of a mixture of experts: which experts compute a row, and their weights.

Gate and up of an expert are one map, gate first; checkpoints that interleave them are reordered
when they are loaded.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

from specdecode_kernels.packed_weights import AnyWeight

GateKind = Literal["silu", "gelu", "gelu_tanh", "swigluoai"]
Scores = Literal["softmax", "softmax_of_top_k", "sigmoid", "sigmoid_of_top_k", "sparsemixer"]


class GatedActivation(NamedTuple):
    """What an expert computes of its gate and up projections.

    silu: silu(gate) * up; gelu by the error function and gelu_tanh by its approximation likewise;
    swigluoai, of gpt-oss: g * sigmoid(alpha * g) * (u + 1), where g = min(gate, limit) and
    u = up bounded to ±limit.
    """

    kind: GateKind
    alpha: float = 1.702
    limit: float = 7.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingConfig:
    """How a router's logits become experts and factors.

    softmax and sigmoid are scores of all experts, whose `top_k` largest are chosen.
    softmax_of_top_k chooses by logits and is the softmax of those alone (gpt-oss), sigmoid_of_top_k
    the sigmoid of each (Llama 4), where large logits differ and their scores do not. sparsemixer
    chooses one expert after another, each with a softmax over the logits within a relative
    distance of 2 * `jitter` below the largest (Phi-3.5-MoE; Liu et al., "GRIN", 2024).
    """

    top_k: int
    scores: Scores
    is_normalized: bool = False  # factors are divided by their sum
    scale: float = 1.0  # of all factors
    num_groups: int = 1  # experts are chosen within the best groups of consecutive ones
    top_groups: int = 1  # a group is as good as the sum of its two best experts
    jitter: float = 0.0


class ExpertRouting(NamedTuple):
    """Experts of each row, and the factors of their outputs."""

    ids: Tensor  # [rows, top_k] i32
    weights: Tensor  # [rows, top_k] f32


@dataclass(frozen=True, slots=True, eq=False)
class ExpertWeights:
    """Weights of all experts of one layer: contiguous, or what `pack_weight` returned."""

    gate_up: AnyWeight  # [experts, 2 * inner, hidden]
    down: AnyWeight  # [experts, hidden, inner]
    gate_up_bias: Tensor | None = None  # [experts, 2 * inner]
    down_bias: Tensor | None = None  # [experts, hidden]

    @property
    def num_experts(self) -> int:
        return self.gate_up.shape[0]
