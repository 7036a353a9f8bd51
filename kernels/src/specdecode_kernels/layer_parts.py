"""Decoder layers that a backend may compute in one call, and where their rows belong."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from specdecode_kernels.low_rank import LayerLowRank
from specdecode_kernels.metadata import AttentionMetadata, AttentionParams, LayerKV
from specdecode_kernels.packed_weights import AnyWeight


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

    input_norm: NormPart | None
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
    low_rank: LayerLowRank | None = None  # added to the maps


class FusedKV(NamedTuple):
    """Keys and values of a layer: the cache, and the scratch of a draft [batch * rows, ...]."""

    cache: LayerKV
    scratch: LayerKV | None = None


@dataclass(frozen=True, slots=True, eq=False)
class FusedRows:
    """Where the rows of a forward write keys and values, and what they see; for several layers.

    Rows without a slot are kept in the scratch, as many for each request.
    """

    metadata: AttentionMetadata  # of what they see in the cache
    slot_mapping: Tensor | None = None  # [rows] i64, rows of the cache
    # [batch, queries, nodes] bool: what they see besides, as in `TreeKV`; of the scratch up to the
    # newest row, or of the nodes of trees
    mask: Tensor | None = None
    node_rows: Tensor | None = None  # [batch, nodes] i64: rows of the nodes, if not all have one
    scratch_rows: int = 0  # of each request
    first: int = 0  # row of the scratch where those of each request begin


class FusedLayer(Protocol):
    """A layer that a backend computes in one call, alone or with those after it."""

    def __call__(
        self,
        x: Tensor,
        rotary: tuple[Tensor, Tensor],
        kvs: Sequence[FusedKV],
        rows: FusedRows,
        *,
        following: "Sequence[FusedLayer]" = (),
        ends: Sequence[int] = (),
        read: Tensor | None = None,
    ) -> Sequence[Tensor] | None:
        """Map the residual stream [rows, hidden] as the ops of the parts do one after the other.

        Args:
            kvs: of this layer and of `following`, which map the stream after it; in one cache and
                one scratch.
            ends: after how many layers the stream is also returned, ascending; fewer than all.
            read: what attention of this layer reads [rows, inputs]; None: x, after its norm if it
                has one.

        Returns:
            The stream after each of `ends` and after all layers; None, before anything is written,
            for arguments that it does not take.
        """
        ...
