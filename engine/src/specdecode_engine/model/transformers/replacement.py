"""Replaces the parts of a network whose rows would depend on their batch."""

import torch
from torch import Tensor, nn

from specdecode_engine.batch.rotary_tables import RotaryLimits
from specdecode_engine.model.layers import Linears
from specdecode_engine.model.transformers.mixture_replacement import MixtureReplacer
from specdecode_engine.model.transformers.modules import (
    RotaryTable,
    RowActivation,
    RowGatedMlp,
    RowLayerNorm,
    RowLinear,
    RowLinearPart,
    RowModule,
    RowRmsNorm,
    RowSilu,
    SharedLinear,
)
from specdecode_engine.model.transformers.recognition import (
    NormKind,
    norm_eps,
    recognise_mlp,
    recognise_norm,
)

TABLE_BLOCK = 256
"""Positions of a rotary table that one call computes: every table is cut at the same positions."""


class Replacer:
    """Replaces modules of one network; each replaced weight is freed before the next is packed."""

    def __init__(
        self, linears: Linears, dtype: torch.dtype, device: torch.device, limits: RotaryLimits
    ) -> None:
        self._linears = linears
        self._dtype = dtype
        self._device = device
        self._limits = limits
        self._mixtures = MixtureReplacer(linears, self._norm)
        self._norms: dict[tuple[object, ...], NormKind | None] = {}

    def replace_children(self, parent: nn.Module) -> None:
        """Replace in place, a whole MLP before its parts."""
        self._fuse_qkv(parent)
        for name, child in parent.named_children():
            new = self._replacement(child)
            if new is None:
                self.replace_children(child)
            else:
                parent._modules[name] = new

    def _replacement(self, module: nn.Module) -> nn.Module | None:
        if "RotaryEmbedding" in type(module).__name__:
            return RotaryTable(rotary_tables(module, self._limits, self._dtype, self._device))
        if type(module) is nn.Linear:
            return self._linear(module)
        if is_silu(module):
            return RowSilu(self._linears.ops, self._dtype, self._device)
        if is_activation(module):
            return RowActivation(module)
        return self._mlp(module) or self._norm(module) or self._mixtures.replacement(module)

    def _fuse_qkv(self, attention: nn.Module) -> None:
        """Make the projections of queries, keys and values one map."""
        parts = [attention._modules.get(f"{name}_proj") for name in "qkv"]
        if any(type(part) is not nn.Linear for part in parts):
            return
        weights, biases = [_weight(part) for part in parts], [_bias(part) for part in parts]
        if len({weight.shape[1] for weight in weights}) > 1 or len({b is None for b in biases}) > 1:
            return
        added = [bias for bias in biases if bias is not None]
        fused = self._linears.make(torch.cat(weights), torch.cat(added) if added else None)
        shared = SharedLinear(fused, [weight.shape[0] for weight in weights])
        for index, name in enumerate("qkv"):
            attention._modules[f"{name}_proj"] = RowLinearPart(shared, index)

    def _linear(self, module: nn.Linear) -> RowLinear:
        bias = None if module.bias is None else module.bias.detach()
        return RowLinear(self._linears.make(_weight(module), bias))

    def _mlp(self, module: nn.Module) -> RowGatedMlp | None:
        names = recognise_mlp(module, is_silu)
        if names is None:
            return None
        parts = [module.get_submodule(name) for name in names.gate_up]
        weight = torch.cat([_weight(part) for part in parts])
        biases = [_bias(part) for part in parts]
        bias = None if biases[0] is None else torch.cat([b for b in biases if b is not None])
        down = module.get_submodule(names.down)
        make = self._linears.make
        gate_up = make(weight, bias)
        return RowGatedMlp(self._linears.ops, gate_up, make(_weight(down), _bias(down)))

    def _norm(self, module: nn.Module) -> RowModule | None:
        kind = self._norm_kind(module)
        if kind is None:
            return None
        eps = norm_eps(module)
        assert eps is not None
        weight, bias = module._parameters.get("weight"), module._parameters.get("bias")
        scale = None if weight is None else weight.detach()
        if scale is not None and kind.adds_one:
            scale = scale.float() + 1 if scale.dtype.itemsize < 4 else scale + 1
        if kind.is_centred:
            return RowLayerNorm(scale, None if bias is None else bias.detach(), eps)
        if bias is not None or (scale is not None and scale.dim() != 1):
            return None
        return RowRmsNorm(self._linears.ops, scale, eps)

    def _norm_kind(self, module: nn.Module) -> NormKind | None:
        shapes = (tuple(p.shape) for p in module.parameters(recurse=False))
        key = (type(module), *shapes)
        if key not in self._norms:
            self._norms[key] = recognise_norm(module)
        return self._norms[key]


def is_silu(module: nn.Module) -> bool:
    """Whether the module is x * sigmoid(x)."""
    return type(module) is nn.SiLU or type(module).__name__ == "SiLUActivation"


def is_activation(module: nn.Module) -> bool:
    """Whether the module is one of transformers' activations, which treat every number alone."""
    from transformers.activations import ACT2CLS

    classes = {entry[0] if isinstance(entry, tuple) else entry for entry in ACT2CLS.values()}
    return type(module) in classes


def rotary_tables(
    module: nn.Module, limits: RotaryLimits, dtype: torch.dtype, device: torch.device
) -> dict[str | None, tuple[Tensor, Tensor]]:
    """Tabulate a rotary embedding's cosines and sines, per layer type where it has several."""
    types: list[str | None] = list(getattr(module, "rope_type", {}) or [])
    if not types or isinstance(module.rope_type, str):
        types = [None]
    is_meta = device.type == "meta"
    if is_meta and len(limits.limits) > 1:
        # Frequencies that depend on the length need numbers; the module has none on meta.
        module, device = type(module)(module.config), torch.device("cpu")
    tables: dict[str | None, tuple[Tensor, Tensor]] = {}
    for name in types:
        parts = [
            _rotary_table(module, name, limit, rows, torch.empty(0, dtype=dtype, device=device))
            for limit, rows in zip(limits.limits, limits.rows, strict=True)
        ]
        cos, sin = (torch.cat(column) for column in zip(*parts, strict=True))
        tables[name] = (cos.to("meta"), sin.to("meta")) if is_meta else (cos, sin)
    return tables


def _rotary_table(
    module: nn.Module, layer_type: str | None, limit: int, rows: int, x: Tensor
) -> tuple[Tensor, Tensor]:
    """Tabulate cosines and sines [rows, dim] of texts of up to `limit` tokens, as `x` is."""
    arguments = () if layer_type is None else (layer_type,)
    last = torch.tensor([[limit - 1]], device=x.device)
    blocks = []
    for first in range(0, rows, TABLE_BLOCK):
        ids = torch.arange(first, first + TABLE_BLOCK, device=x.device)[None]
        # The last position comes along, so that every block has the frequencies of the limit.
        cos, sin = module(x, torch.cat((ids.clamp(max=limit - 1), last), dim=1), *arguments)
        blocks.append((cos[0, :-1], sin[0, :-1]))
    cos, sin = (torch.cat(parts)[:rows] for parts in zip(*blocks, strict=True))
    return cos, sin


def _weight(linear: nn.Module | None) -> Tensor:
    assert isinstance(linear, nn.Linear)
    return linear.weight.detach()


def _bias(linear: nn.Module | None) -> Tensor | None:
    assert isinstance(linear, nn.Linear)
    return None if linear.bias is None else linear.bias.detach()
