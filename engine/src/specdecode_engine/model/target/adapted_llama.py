"""A Llama that computes rows with LoRA adapters, from the weights of one without."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specdecode_engine.model.checkpoint.adapters.adapter import Adapter, Factors
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
from specdecode_kernels import ActiveRows, LayerLowRank, LowRankFactors, LowRankMaps
from specdecode_kernels.torch.elementwise import accumulation_dtype

Arrange = Callable[[Tensor], Tensor]
"""Puts the outputs of a fused map [outputs, ...] into the order in which the engine has them."""


def adapted_llama(
    llama: Llama, base: AdapterBase, adapters: Sequence[Adapter], linears: Linears
) -> tuple[Llama, ActiveRows]:
    """Return a model that shares all weights with `llama`, and what chooses adapters of rows.

    Args:
        adapters: by slot, from slot 1 on; slot 0 is a row without an adapter.
        linears: makes the maps of an embedding's factors, which are float32 or wider.
    """
    builder = _Builder(base, adapters, linears, accumulation_dtype(llama.dtype), ActiveRows())
    layers = tuple(builder.layer(number, layer, llama) for number, layer in enumerate(llama.layers))
    head = builder.linear(llama.head, [HEAD.removesuffix(".weight")])
    embedding = builder.embedding(1.0 if llama.embedding_scale is None else llama.embedding_scale)
    return replace(llama, layers=layers, head=head, adapted_embedding=embedding), builder.active


@dataclass(frozen=True, slots=True)
class _Builder:
    base: AdapterBase
    adapters: Sequence[Adapter]
    linears: Linears
    dtype: torch.dtype  # of factors
    active: ActiveRows

    def layer(
        self, number: int, layer: DecoderLayer[Attention], llama: Llama
    ) -> DecoderLayer[Attention]:
        """Return the layer itself if no adapter changes it."""
        prefix, config = f"model.layers.{number}", llama.config.decoder
        own, mlp = layer.attention, layer.mlp
        names = [f"{prefix}.self_attn.{part}_proj" for part in "qkv"]
        has_order = config.rotary_dim is not None or config.has_output_gate
        qkv = self.linear(
            own.qkv, names, (lambda rows: order_qkv(rows, config)) if has_order else None
        )
        output = self.linear(own.output, [f"{prefix}.self_attn.o_proj"])
        attention = own
        if qkv is not own.qkv or output is not own.output:
            attention = replace(own, qkv=qkv, output=output)
        adapted = self.mlp(f"{prefix}.mlp", mlp) if isinstance(mlp, Mlp) else mlp
        if attention is own and adapted is mlp:
            return layer
        changed = replace(layer, attention=attention, mlp=adapted, fused=None)
        if layer.fused is None or not isinstance(adapted, Mlp):
            return changed
        maps = qkv, output, adapted.gate_up, adapted.down
        return fused_layer(changed, self._low_rank_of(*maps))

    def _low_rank_of(
        self, qkv: Linear, output: Linear, gate_up: Linear, down: Linear
    ) -> LayerLowRank:
        return LayerLowRank(
            active=self.active,
            qkv=_low_rank_of(qkv),
            output=_low_rank_of(output),
            gate_up=_low_rank_of(gate_up),
            down=_low_rank_of(down),
        )

    def mlp(self, prefix: str, mlp: Mlp) -> Mlp:
        gate_up = self.linear(mlp.gate_up, [f"{prefix}.gate_proj", f"{prefix}.up_proj"])
        down = self.linear(mlp.down, [f"{prefix}.down_proj"])
        if gate_up is mlp.gate_up and down is mlp.down:
            return mlp
        return replace(mlp, gate_up=gate_up, down=down)

    def linear(
        self, base: Linear, modules: Sequence[str], arrange: Arrange | None = None
    ) -> Linear:
        """Return a map of modules one below the other; `base` itself if no adapter changes it."""
        maps, pack = LowRankMaps.empty(1 + len(self.adapters)), base.ops.pack_low_rank
        for slot, adapter in enumerate(self.adapters, start=1):
            found = {one: adapter.factors[one] for one in modules if one in adapter.factors}
            if found:
                factors = self._join(found, modules, arrange)
                maps.put(slot, factors if pack is None else pack(factors))
        if not any(maps.by_slot):
            return base
        return AdaptedLinear.of(base, self.active, maps)

    def _join(
        self, found: Mapping[str, Factors], modules: Sequence[str], arrange: Arrange | None
    ) -> LowRankFactors:
        """Join the factors of maps that read the same input; a map without any gets zeros."""
        outputs = [self.base.shapes[one][0] for one in modules]
        a = torch.cat([one.a for one in found.values()])
        b, column = torch.zeros(sum(outputs), len(a)), 0
        for module, rows in zip(modules, b.split_with_sizes(outputs), strict=True):
            if module in found:
                one = found[module]
                rows[:, column : column + one.rank] = one.b * one.scale
                column += one.rank
        b = b if arrange is None else arrange(b)
        return LowRankFactors(a.to(self.dtype), b.to(self.dtype))

    def embedding(self, embedding_scale: float) -> AdaptedEmbedding | None:
        """Scale what adapters add as the model scales embeddings, so that sums are rounded once."""
        by_slot: list[LowRankEmbedding | None] = [None]
        for adapter in self.adapters:
            one = adapter.factors.get(self.base.embedding)
            if one is None:
                by_slot.append(None)
                continue
            a = one.a.T.contiguous().to(self.dtype)
            b = one.b * (one.scale * embedding_scale)
            by_slot.append(LowRankEmbedding(a, self.linears.make(b.to(self.dtype).clone())))
        return AdaptedEmbedding(self.active, by_slot) if any(by_slot) else None


def _low_rank_of(map_: Linear) -> LowRankMaps | None:
    return map_.low_rank if isinstance(map_, AdaptedLinear) else None
