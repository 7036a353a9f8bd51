"""A Llama that computes rows with LoRA adapters, from the weights of one without.

Every linear map has a place for the factors of each slot, so that adapters come and go while the
model is in use.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from specdecode_engine.model.checkpoint.adapters.adapter import Adapter
from specdecode_engine.model.checkpoint.adapters.adapter_file import AdapterBase
from specdecode_engine.model.layers.adapted_linear import (
    AdaptedEmbedding,
    AdaptedLinear,
    LowRankEmbedding,
)
from specdecode_engine.model.layers.layers import (
    Attention,
    DecoderLayer,
    Linear,
    Mlp,
    fused_layer,
)
from specdecode_engine.model.layers.linears import Linears
from specdecode_engine.model.target.head_order import order_qkv
from specdecode_engine.model.target.llama import HEAD, Llama
from specdecode_kernels import (
    ActiveRows,
    LayerLowRank,
    LowRankFactors,
    LowRankMaps,
    PackedLowRank,
)
from specdecode_kernels.torch.elementwise import accumulation_dtype

Arrange = Callable[[Tensor], Tensor]
"""Puts the outputs of a fused map [outputs, ...] into the order in which the engine has them."""

Packed = LowRankFactors | PackedLowRank
PackLowRank = Callable[[LowRankFactors], PackedLowRank]


@dataclass(frozen=True, slots=True)
class AdaptedMap:
    """Where the factors of a linear map go."""

    maps: LowRankMaps
    modules: Sequence[str]  # of the checkpoint, one below the other
    arrange: Arrange | None
    pack: PackLowRank | None

    def join(self, adapter: Adapter, base: AdapterBase, dtype: torch.dtype) -> Packed | None:
        """Join the factors of maps that read the same input; a map without any gets zeros."""
        found = {one: adapter.factors[one] for one in self.modules if one in adapter.factors}
        if not found:
            return None
        outputs = [base.shapes[one][0] for one in self.modules]
        a = torch.cat([one.a for one in found.values()])
        b, column = torch.zeros(sum(outputs), len(a)), 0
        for module, rows in zip(self.modules, b.split_with_sizes(outputs), strict=True):
            if module in found:
                one = found[module]
                rows[:, column : column + one.rank] = one.b * one.scale
                column += one.rank
        b = b if self.arrange is None else self.arrange(b)
        factors = LowRankFactors(a.to(dtype), b.to(dtype))
        return factors if self.pack is None else self.pack(factors)


class PackedAdapter(NamedTuple):
    """The factors of an adapter as a model computes with them."""

    maps: Sequence[Packed | None]  # in the order of the model's maps
    embedding: LowRankEmbedding | None


@dataclass(frozen=True, slots=True, eq=False)
class AdaptedLlama:
    """A model that shares all weights with one without adapters, and what adapters add to it."""

    model: Llama
    active: ActiveRows  # chooses the slots of rows; slot 0 has no adapter
    base: AdapterBase
    linears: Linears  # makes the maps of an embedding's factors, which are float32 or wider
    maps: Sequence[AdaptedMap]
    embedding: AdaptedEmbedding

    def pack(self, adapter: Adapter) -> PackedAdapter:
        """Pack an adapter; on any thread.

        What is added to embeddings is scaled as the model scales them, so that sums are rounded
        once.
        """
        dtype = accumulation_dtype(self.model.dtype)
        maps = [one.join(adapter, self.base, dtype) for one in self.maps]
        own = adapter.factors.get(self.base.embedding)
        if own is None:
            return PackedAdapter(maps, None)
        embedding_scale = self.model.embedding_scale
        scale = own.scale * (1.0 if embedding_scale is None else embedding_scale)
        b = self.linears.make((own.b * scale).to(dtype).clone())
        return PackedAdapter(maps, LowRankEmbedding(own.a.T.contiguous().to(dtype), b))

    def put(self, slot: int, packed: PackedAdapter | None) -> None:
        """Replace the adapter of a slot, which no row of a running forward may have."""
        parts = [None] * len(self.maps) if packed is None else packed.maps
        for one, part in zip(self.maps, parts, strict=True):
            one.maps.put(slot, part)
        self.embedding.by_slot[slot] = None if packed is None else packed.embedding


def adapted_llama(
    llama: Llama, base: AdapterBase, num_slots: int, linears: Linears
) -> AdaptedLlama:
    """Return a model without adapters yet, for `num_slots` slots, slot 0 included."""
    builder = _Builder(num_slots, ActiveRows())
    layers = tuple(builder.layer(number, layer, llama) for number, layer in enumerate(llama.layers))
    head = builder.linear(llama.head, [HEAD.removesuffix(".weight")])
    embedding = AdaptedEmbedding(builder.active, [None] * num_slots)
    model = replace(llama, layers=layers, head=head, adapted_embedding=embedding)
    return AdaptedLlama(model, builder.active, base, linears, builder.maps, embedding)


@dataclass(frozen=True, slots=True)
class _Builder:
    num_slots: int
    active: ActiveRows
    maps: list[AdaptedMap] = field(default_factory=list)

    def layer(
        self, number: int, layer: DecoderLayer[Attention], llama: Llama
    ) -> DecoderLayer[Attention]:
        prefix, config = f"model.layers.{number}", llama.config.decoder
        own, mlp = layer.attention, layer.mlp
        names = [f"{prefix}.self_attn.{part}_proj" for part in "qkv"]
        has_order = config.rotary_dim is not None or config.has_output_gate
        qkv = self.linear(
            own.qkv, names, (lambda rows: order_qkv(rows, config)) if has_order else None
        )
        output = self.linear(own.output, [f"{prefix}.self_attn.o_proj"])
        attention = replace(own, qkv=qkv, output=output)
        if not isinstance(mlp, Mlp):
            return replace(layer, attention=attention, fused=None)
        names = [f"{prefix}.mlp.gate_proj", f"{prefix}.mlp.up_proj"]
        gate_up = self.linear(mlp.gate_up, names)
        down = self.linear(mlp.down, [f"{prefix}.mlp.down_proj"])
        adapted = replace(mlp, gate_up=gate_up, down=down)
        changed = replace(layer, attention=attention, mlp=adapted, fused=None)
        if layer.fused is None:
            return changed
        low_rank = LayerLowRank(
            active=self.active,
            qkv=qkv.low_rank,
            output=output.low_rank,
            gate_up=gate_up.low_rank,
            down=down.low_rank,
        )
        return fused_layer(changed, low_rank)

    def linear(
        self, base: Linear, modules: Sequence[str], arrange: Arrange | None = None
    ) -> AdaptedLinear:
        maps = LowRankMaps.empty(self.num_slots)
        self.maps.append(AdaptedMap(maps, modules, arrange, base.ops.pack_low_rank))
        return AdaptedLinear.of(base, self.active, maps)
