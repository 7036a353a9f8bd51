"""The parts of a decoder layer, as plain records that hold weights and can be called."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from specdecode_engine.model.kv.kv_cache import RotaryRows
from specdecode_engine.model.kv.kv_views import KVView, PagedView, ScratchView
from specdecode_engine.ranks import Ranks
from specdecode_kernels import (
    DEFAULT_ATTENTION,
    AnyWeight,
    AttentionParams,
    Backend,
    FusedLayer,
    FusibleLayer,
    LayerLowRank,
)
from specdecode_kernels.torch.by_row import by_row
from specdecode_kernels.torch.elementwise import add_parts


def rotary_rows(angles: Tensor, positions: Tensor) -> RotaryRows:
    """Return the cosines and sines at `positions` [rows] i64 of the tables of `build_angles`.

    A step verifies a few rows past the end of a table; they are cut from the output afterwards, so
    any angle will do for them.
    """
    rows = angles.index_select(1, positions.clamp(max=angles.shape[1] - 1))
    cos, sin = rows.unbind()
    return cos, sin


def widened(logits: Tensor) -> Tensor:
    """Give logits of a model's type the type in which sampling computes: f32, or f64."""
    return logits if logits.dtype == torch.float64 else logits.float()


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """A linear map; weight [outputs, inputs]."""

    ops: Backend
    weight: AnyWeight
    bias: Tensor | None = None

    def plain_weight(self) -> Tensor:
        """The weight as an ordinary tensor; a copy if it is packed or quantized."""
        return self.weight if isinstance(self.weight, Tensor) else self.weight.plain()

    def rows(self, start: int, stop: int) -> Tensor:
        """Some outputs of the weight as an ordinary tensor, as `plain_weight`."""
        weight = self.weight
        return weight[start:stop] if isinstance(weight, Tensor) else weight.rows(start, stop)

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
        return self.ops.rms_norm(x, self.weight, self.eps)

    def after_adding(self, x: Tensor, update: Tensor) -> tuple[Tensor, Tensor]:
        """Add both [rows, dim]; return the sum and its norm. The update may be in parts."""
        return self.ops.add_rms_norm(x, update, self.weight, self.eps)


@dataclass(frozen=True, slots=True, eq=False)
class QkNorm:
    """Norms over head_dim of every query head and of every key head, before RoPE; as in Qwen3."""

    q: Norm
    k: Norm

    def __call__(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Map q and k [rows, heads, head_dim] to themselves."""
        return self.q(q), self.k(k)


@dataclass(frozen=True, slots=True, eq=False)
class QueryNorm:
    """A norm of query heads, where keys are those of another layer."""

    q: Norm

    def __call__(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Map q [rows, heads, head_dim] to itself; k has no heads."""
        return self.q(q), k


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """Grouped-query attention over the keys and values of a view."""

    ops: Backend
    qkv: Linear  # q, k and v one under the other, then the gate of the output if there is one
    output: Linear
    q_heads: int
    kv_heads: int  # 0: keys and values are those of another layer
    head_dim: int
    qk_norm: QkNorm | QueryNorm | None = None
    params: AttentionParams = DEFAULT_ATTENTION
    gate_dim: int = 0  # entries of each query head's gate: none, one or as many as of a query
    v_head_dim: int | None = None  # None: head_dim
    value_scale: float | None = None

    def __call__(self, x: Tensor, rotary: RotaryRows, layer: int, kv: KVView) -> Tensor:
        """Map [rows, inputs] to [rows, hidden]."""
        q, k, v, *gate = self._project(x)
        attended = kv.attend(layer, q, k, v, self.params, rotary)
        if gate:
            opened = by_row(torch.sigmoid, gate[0])
            attended = attended * opened.view(-1, self.q_heads, self.gate_dim)
        return self.output(attended.flatten(1))

    def store_kv(self, x: Tensor, rotary: RotaryRows, layer: int, kv: PagedView) -> None:
        """Write the keys and values of [rows, inputs], as a call does, and compute nothing else."""
        q, k, v, *_ = self._project(x)
        kv.turn_and_store(layer, q[:, :0], k, v, rotary)

    def _project(self, x: Tensor) -> Sequence[Tensor]:
        """Return queries, keys and values [rows, heads, dim], and perhaps a gate [rows, n].

        Queries and keys are not turned yet.
        """
        q, k, *others = self._split(self.qkv(x))
        if self.qk_norm is not None:
            q, k = self.qk_norm(q, k)
        return q, k, *others

    def _split(self, projected: Tensor) -> Sequence[Tensor]:
        """Split [rows, width] into q, k and v [rows, heads, dim], and perhaps a gate [rows, n]."""
        rows, dim = projected.shape[0], self.head_dim
        if self.v_head_dim is None and self.value_scale is None and not self.gate_dim:
            parts = [self.q_heads, self.kv_heads, self.kv_heads]
            return projected.view(rows, sum(parts), dim).split_with_sizes(parts, dim=1)
        counts = self.q_heads, self.kv_heads, self.kv_heads
        dims = dim, dim, self.v_head_dim or dim
        widths = [heads * each for heads, each in zip(counts, dims, strict=True)]
        columns = projected.split_with_sizes([*widths, projected.shape[1] - sum(widths)], dim=1)
        q, k, v = (part.view(rows, -1, each) for part, each in zip(columns[:3], dims, strict=True))
        if self.value_scale is not None:
            v = v * self.value_scale
        return (q, k, v, columns[3]) if self.gate_dim else (q, k, v)


class SelfAttention(Protocol):
    """What a decoder layer has for attention."""

    def __call__(self, x: Tensor, rotary: RotaryRows, layer: int, kv: KVView) -> Tensor:
        """Map [rows, inputs] to [rows, hidden]."""
        ...

    def store_kv(self, x: Tensor, rotary: RotaryRows, layer: int, kv: PagedView) -> None:
        """Write the keys and values of [rows, inputs], as a call does."""
        ...


AttentionT = TypeVar("AttentionT", bound=SelfAttention)
AttentionT_co = TypeVar("AttentionT_co", bound=SelfAttention, covariant=True)


@dataclass(frozen=True, slots=True, eq=False)
class Mlp:
    """The gated feed-forward block."""

    activate: Callable[[Tensor, Tensor], Tensor]  # of gate and up, an op of the backend
    gate_up: Linear  # gate and up one under the other
    down: Linear

    def __call__(self, x: Tensor) -> Tensor:
        """Map [rows, hidden] to [rows, hidden]."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(self.activate(gate, up))


@dataclass(frozen=True, slots=True, eq=False)
class OutputNorms:
    """Norms of what attention and the MLP give, before it is added; as in Gemma 2."""

    attention: Norm
    mlp: Norm


@dataclass(frozen=True, slots=True, eq=False)
class DecoderLayer(Generic[AttentionT_co]):
    """One Llama layer: attention and MLP, each after a norm and added to the residual.

    The first layer of a draft head has no norm of its own before attention.
    """

    input_norm: Norm | None
    attention: AttentionT_co
    mlp_norm: Norm
    mlp: Callable[[Tensor], Tensor]  # maps [rows, hidden]: an `Mlp`, or one with experts
    output_norms: OutputNorms | None = None
    ranks: Ranks | None = None  # that compute parts of attention and of the MLP; None: one does
    fused: FusedLayer | None = None  # computes the layer in one call, with others after it

    def __call__(
        self, x: Tensor, rotary: RotaryRows, layer: int, kv: KVView, read: Tensor | None = None
    ) -> Tensor:
        """Map the residual stream [rows, hidden] to itself, op by op; x is left as it was.

        Attention reads `read` [rows, inputs], if that is not None.
        """
        return added(*self.update(x, rotary, layer, kv, read))

    def update(
        self, x: Tensor, rotary: RotaryRows, layer: int, kv: KVView, read: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the residual stream after attention, and what the MLP adds to it.

        The second is in parts [parts, rows, hidden] where ranks computed some, as a norm takes it.
        """
        read = self._read(x) if read is None else read
        attended, norms = self._parts(self.attention(read, rotary, layer, kv)), self.output_norms
        attended = attended if norms is None else norms.attention(attended)
        x, normed = self.mlp_norm.after_adding(x, attended)
        update = self._parts(self.mlp(normed))
        return x, update if norms is None else norms.mlp(update)

    def _parts(self, part: Tensor) -> Tensor:
        if self.ranks is None:
            return part
        return self.ranks.parts(part) if self.output_norms is None else self.ranks.add(part)

    def store_kv(self, x: Tensor, rotary: RotaryRows, layer: int, kv: PagedView) -> None:
        """Write the keys and values that a call would write."""
        self.attention.store_kv(self._read(x), rotary, layer, kv)

    def _read(self, x: Tensor) -> Tensor:
        return x if self.input_norm is None else self.input_norm(x)


def added(x: Tensor, update: Tensor) -> Tensor:
    """Add an update to x [rows, hidden]; it may be in parts [parts, rows, hidden]."""
    return x + (update if update.dim() == x.dim() else add_parts(update))


def map_by_layers(
    layers: Sequence[DecoderLayer[SelfAttention]],
    x: Tensor,
    rotary: RotaryRows,
    first: int,
    kv: KVView,
    read: Tensor | None = None,
) -> Tensor:
    """Map the residual stream [rows, hidden] by layers from number `first` on, in few calls.

    Attention of the first of them reads `read` [rows, inputs], if that is not None.
    """
    return map_and_collect(layers, x, rotary, first, kv, (), read)[0]


def map_and_collect(
    layers: Sequence[DecoderLayer[SelfAttention]],
    x: Tensor,
    rotary: RotaryRows,
    first: int,
    kv: KVView,
    ends: Sequence[int],
    read: Tensor | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """Do as `map_by_layers`; return also the stream after each layer whose number is in `ends`."""
    collected, number, stop = list[Tensor](), first, first + len(layers)
    while number < stop:
        rest = layers[number - first :]
        streams, count = _map_fused(rest, x, rotary, number, kv, ends, read)
        read_next = None
        if not count:
            after, read_next = _map_by_one(rest, x, rotary, number, kv, read)
            streams, count = [after], 1
        number += count
        x, read = streams[-1], read_next
        collected += streams if number - 1 in ends else streams[:-1]
    return x, collected


def _map_by_one(
    layers: Sequence[DecoderLayer[SelfAttention]],
    x: Tensor,
    rotary: RotaryRows,
    number: int,
    kv: KVView,
    read: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Map by the first layer; one call adds its update and norms the sum for the next layer.

    Returns:
        The stream, and what attention of the next layer reads; None if that layer norms it.
    """
    x, update = layers[0].update(x, rotary, number, kv, read)
    following = layers[1] if len(layers) > 1 else None
    if following is None or following.fused is not None or following.input_norm is None:
        return added(x, update), None
    return following.input_norm.after_adding(x, update)


def _map_fused(
    layers: Sequence[DecoderLayer[SelfAttention]],
    x: Tensor,
    rotary: RotaryRows,
    first: int,
    kv: KVView,
    ends: Sequence[int],
    read: Tensor | None,
) -> tuple[Sequence[Tensor], int]:
    """Map by as many of the first layers as the backend computes together; return their number too.

    The streams are those after each of `ends`, and after the last of these layers.
    """
    fused = list[FusedLayer]()
    for layer in layers:
        if layer.fused is None:
            break
        fused.append(layer.fused)
    if not fused or not isinstance(kv, PagedView | ScratchView):
        return (), 0
    if (found := kv.fusible(range(first, first + len(fused)))) is None:
        return (), 0
    rows, kvs = found
    leading, *following = fused[: len(kvs)]
    inner = [end + 1 - first for end in ends if first <= end < first + len(kvs) - 1]
    streams = leading(x, rotary, kvs, rows, following=following, ends=inner, read=read)
    return ((), 0) if streams is None else (streams, len(kvs))


def fused_layer(
    layer: DecoderLayer[Attention], low_rank: LayerLowRank | None = None
) -> DecoderLayer[Attention]:
    """Let one call compute a layer of no more parts than a Llama has, if its backend can.

    Args:
        low_rank: what LoRA adapters add to the outputs of its maps.
    """
    attention, mlp = layer.attention, layer.mlp
    fuse, qk_norm = attention.ops.fuse_layer, attention.qk_norm
    if fuse is None or layer.output_norms or not isinstance(mlp, Mlp):
        return layer
    has_more = attention.gate_dim or attention.v_head_dim or attention.value_scale is not None
    if has_more or isinstance(qk_norm, QueryNorm):
        return layer
    parts = FusibleLayer(
        input_norm=layer.input_norm,
        qkv=attention.qkv,
        q_norm=None if qk_norm is None else qk_norm.q,
        k_norm=None if qk_norm is None else qk_norm.k,
        output=attention.output,
        mlp_norm=layer.mlp_norm,
        gate_up=mlp.gate_up,
        down=mlp.down,
        q_heads=attention.q_heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        is_gelu=mlp.activate is attention.ops.gelu_tanh_and_mul,
        attention=attention.params,
        low_rank=low_rank,
    )
    return replace(layer, fused=fuse(parts))
