"""The parts of a decoder layer, as plain records that hold weights and can be called."""

from dataclasses import dataclass

from torch import Tensor

from specdecode_engine.model.kv_views import KVView
from specdecode_engine.model.rope import Angles
from specdecode_kernels import Backend, PackedWeight


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """A linear map; weight [outputs, inputs]."""

    ops: Backend
    weight: Tensor | PackedWeight
    bias: Tensor | None = None

    def plain_weight(self) -> Tensor:
        """The weight as an ordinary tensor; a copy if it is packed."""
        return self.weight if isinstance(self.weight, Tensor) else self.weight.plain()

    def __call__(self, x: Tensor) -> Tensor:
        """Map [rows, inputs] to [rows, outputs]."""
        return self.ops.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """Root-mean-square norm; weight [dim]."""

    ops: Backend
    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise [rows, dim]."""
        return self.ops.rms_norm(x, self.weight, self.eps)

    def after_adding(self, x: Tensor, update: Tensor) -> tuple[Tensor, Tensor]:
        """Add both [rows, dim]; return the sum and its norm."""
        return self.ops.add_rms_norm(x, update, self.weight, self.eps)


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """Grouped-query attention; where keys and values live is the view's business."""

    ops: Backend
    qkv: Linear  # q, k and v one under the other
    output: Linear
    q_heads: int
    kv_heads: int
    head_dim: int

    def __call__(self, x: Tensor, angles: Angles, layer: int, kv: KVView) -> Tensor:
        """Map [rows, inputs] to [rows, hidden]."""
        parts = [self.q_heads, self.kv_heads, self.kv_heads]
        heads = self.qkv(x).view(x.shape[0], sum(parts), self.head_dim)
        q, k, v = heads.split_with_sizes(parts, dim=1)
        q, k = self.ops.apply_rope(q, k, angles.cos, angles.sin)
        return self.output(kv.attend(layer, q, k, v).flatten(1))


@dataclass(frozen=True, slots=True, eq=False)
class Mlp:
    """The gated feed-forward block."""

    ops: Backend
    gate_up: Linear  # gate and up one under the other
    down: Linear

    def __call__(self, x: Tensor) -> Tensor:
        """Map [rows, hidden] to [rows, hidden]."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(self.ops.silu_and_mul(gate, up))


@dataclass(frozen=True, slots=True, eq=False)
class DecoderLayer:
    """One Llama layer: attention and MLP, each after a norm and added to the residual.

    The first layer of a draft head has no norm of its own before attention.
    """

    input_norm: Norm | None
    attention: Attention
    mlp_norm: Norm
    mlp: Mlp

    def __call__(self, x: Tensor, angles: Angles, layer: int, kv: KVView) -> Tensor:
        """Map the residual stream [rows, hidden] to itself; x is left as it was."""
        read = x if self.input_norm is None else self.input_norm(x)
        return self.finish(x, self.attention(read, angles, layer, kv))

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Add what attention gave to the residual stream [rows, hidden], then the MLP."""
        x, normed = self.mlp_norm.after_adding(x, attended)
        return x + self.mlp(normed)
