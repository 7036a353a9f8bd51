"""The parts of a decoder layer that a backend may compute in one call."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from specdecode_kernels.metadata import AttentionMetadata, AttentionParams, LayerKV
from specdecode_kernels.weights import AnyWeight


class NormPart(Protocol):
    """A norm as by `Backend.rms_norm`."""

    @property
    def weight(self) -> Tensor: ...
    @property
    def eps(self) -> float: ...


class MapPart(Protocol):
    """A map as by `Backend.linear`."""

    @property
    def weight(self) -> AnyWeight: ...
    @property
    def bias(self) -> Tensor | None: ...


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FusibleLayer:
    """A decoder layer of Llama's shape, whose heads of values are as wide as those of keys."""

    input_norm: NormPart
    qkv: MapPart
    q_norm: NormPart | None  # of each head, before RoPE
    k_norm: NormPart | None
    output: MapPart
    mlp_norm: NormPart
    gate_up: MapPart
    down: MapPart
    q_heads: int
    kv_heads: int
    head_dim: int
    is_gelu: bool  # whether `gelu_tanh_and_mul` opens the gate, not `silu_and_mul`
    attention: AttentionParams


FusedLayer = Callable[
    [Tensor, tuple[Tensor, Tensor], LayerKV, Tensor, AttentionMetadata], Tensor | None
]
"""(x, rotary, kv, slot_mapping, metadata): map the residual stream [rows, hidden] as the ops of the
parts do one after the other, and write keys and values to `slot_mapping`; None, before anything is
written, for arguments that it does not take."""
