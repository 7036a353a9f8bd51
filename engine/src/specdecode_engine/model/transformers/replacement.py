"""Replaces the parts of a network whose rows would depend on their batch."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from specdecode_engine.batch.rotary_tables import RotaryLimits
from specdecode_engine.model.layers import Linear
from specdecode_engine.model.linears import Linears, MapKind
from specdecode_engine.model.transformers.attention import PagedAttention
from specdecode_engine.model.transformers.attention_form import (
    INPUTS,
    AttentionForm,
    Rotation,
    halves_of_pairs,
    recognise_attention,
)
from specdecode_engine.model.transformers.mixture_replacement import MixtureReplacer
from specdecode_engine.model.transformers.modules import (
    LayerList,
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
from specdecode_engine.model.transformers.row_attention import (
    AttentionMaps,
    QueryFactors,
    RowAttention,
)
from specdecode_engine.model.transformers.row_layer import RowDecoderLayer, recognise_layer
from specdecode_kernels.torch.elementwise import accumulation_dtype

TABLE_BLOCK = 256
"""Positions of a rotary table that one call computes: every table is cut at the same positions."""


class Replacer:
    """Replaces modules of one network; each replaced weight is freed before the next is packed."""

    def __init__(
        self,
        linears: Linears,
        dtype: torch.dtype,
        device: torch.device,
        limits: RotaryLimits,
        head: nn.Module | None = None,
    ) -> None:
        self._linears = linears
        self._dtype = dtype
        self._device = device
        self._limits = limits
        self._head = head  # scores of the vocabulary
        self._mixtures = MixtureReplacer(linears, dtype, self._norm, self._mlp)
        self._norms: dict[tuple[object, ...], NormKind | None] = {}
        self._angles: set[int | None] = set()  # of half a head; None: not those of halves
        self._shared: set[int] = set()  # addresses of parameters that several modules have

    def replace_children(self, network: nn.Module) -> None:
        """Replace in place, rotary tables first, a whole attention or MLP before its parts."""
        uses = Counter(p.data_ptr() for _, p in network.named_parameters(remove_duplicate=False))
        self._shared = {address for address, count in uses.items() if count > 1}
        for parent in list(network.modules()):
            for name, child in parent.named_children():
                if "RotaryEmbedding" in type(child).__name__:
                    table = self._rotary_table(child)
                    parent._modules[name] = table
                    self._angles |= table.angles_of_halves()
                if type(child) is nn.ModuleList:
                    parent._modules[name] = LayerList(child)
        self._replace_parts(network)

    def _replace_parts(self, parent: nn.Module) -> None:
        self._fuse_qkv(parent)
        for name, child in parent.named_children():
            new = self._replacement(child)
            if new is not None:
                parent._modules[name] = new
            elif not isinstance(child, RowModule):
                self._replace_parts(child)
                parts = recognise_layer(child)
                if parts is not None:
                    parent._modules[name] = RowDecoderLayer(self._linears.ops, parts, child)

    def _rotary_table(self, module: nn.Module) -> RotaryTable:
        wide = accumulation_dtype(self._dtype)
        tables = rotary_tables(module, self._limits, wide, self._device)
        return RotaryTable(tables, self._dtype)

    def _replacement(self, module: nn.Module) -> nn.Module | None:
        if type(module) is nn.Linear:
            return RowLinear(self._make(module))
        if is_silu(module):
            return RowSilu(self._linears.ops, self._dtype, self._device)
        if is_activation(module):
            return RowActivation(module)
        return (
            self._attention(module)
            or self._mlp(module)
            or self._norm(module)
            or self._mixtures.replacement(module)
        )

    def _attention(self, module: nn.Module) -> RowAttention | None:
        paged = getattr(module, "paged_attention", None)
        if not isinstance(paged, PagedAttention) or not _can_join(_projections(module)):
            return None
        form = recognise_attention(module)
        if form is None or not self._has_angles(form):
            return None
        found = (self._norm(module.get_submodule(name)) for name in form.norms)
        norms = tuple(norm for norm in found if norm is not None)
        if len(norms) < len(form.norms):
            return None
        parts = _projections(module)
        if form.rotation is Rotation.PAIRS:
            if any(getattr(norm, "weight", None) is not None for norm in norms):
                return None  # it would have to be in the order of halves as well
            for part in parts[:2]:
                _order_in_halves(part, form.head_dim)
        qkv, widths = self._joined(parts)
        gate = None if form.gate is None else self._make(module.get_submodule(form.gate))
        maps = AttentionMaps(qkv, widths, self._make(module.get_submodule(form.output)), gate)
        return RowAttention(self._linears.ops, maps, norms, form, paged, self._query_factors(form))

    def _has_angles(self, form: AttentionForm) -> bool:
        """Whether the rotary tables have what an attention module reads."""
        if form.temperature is not None and len(self._limits.limits) > 1:
            return False
        return form.rotation is Rotation.NONE or self._angles == {form.head_dim // 2}

    def _query_factors(self, form: AttentionForm) -> QueryFactors | None:
        if form.temperature is None:
            return None
        return QueryFactors.of(form.temperature, self._limits.rows[0], self._device)

    def _fuse_qkv(self, attention: nn.Module) -> None:
        """Make the projections of queries, keys and values one map."""
        parts = _projections(attention)
        if not _can_join(parts):
            return
        shared = SharedLinear(*self._joined(parts))
        for index, name in enumerate(INPUTS):
            attention._modules[name] = RowLinearPart(shared, index)

    def _joined(self, parts: Sequence[nn.Module | None]) -> tuple[Linear, list[int]]:
        """Make several maps of one input one map, and free each; also return their outputs."""
        sizes = [_weight(part).shape[0] for part in parts]
        biases = [bias for bias in map(_bias, parts) if bias is not None]
        first = _weight(parts[0])
        weight = first.new_empty(sum(sizes), first.shape[1])
        del first
        for part, rows in zip(parts, weight.split_with_sizes(sizes), strict=True):
            rows.copy_(_weight(part))
            assert part is not None
            part._parameters["weight"] = None
        return self._linears.make(weight, torch.cat(biases) if biases else None), sizes

    def _make(self, module: nn.Module) -> Linear:
        weight = _weight(module)
        kind = MapKind.HEAD if module is self._head else MapKind.LAYER
        is_kept = weight.data_ptr() in self._shared
        return self._linears.make(weight, _bias(module), kind, is_kept=is_kept)

    def _mlp(self, module: nn.Module) -> RowGatedMlp | None:
        names = recognise_mlp(module, is_silu)
        if names is None:
            return None
        parts = [module.get_submodule(name) for name in names.gate_up]
        if not _can_join(parts):
            return None
        gate_up, _ = self._joined(parts)
        down = self._make(module.get_submodule(names.down))
        return RowGatedMlp(self._linears.ops, gate_up, down)

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
        positions = torch.cat((ids.clamp(max=limit - 1), last), dim=1)
        cos, sin = _cos_and_sin(module(x, positions, *arguments))
        blocks.append((cos[0, :-1], sin[0, :-1]))
    cos, sin = (torch.cat(parts)[:rows] for parts in zip(*blocks, strict=True))
    return cos, sin


def _cos_and_sin(angles: Any) -> tuple[Tensor, Tensor]:
    """Return the pair that most modules compute; Llama 4's are complex, one for two numbers."""
    if isinstance(angles, Tensor):
        return torch.cat((angles.real,) * 2, dim=-1), torch.cat((angles.imag,) * 2, dim=-1)
    cos, sin = angles
    return cos, sin


def _order_in_halves(linear: nn.Module | None, head_dim: int) -> None:
    """Put the outputs of a map in the order of `halves_of_pairs`, head by head."""
    assert isinstance(linear, nn.Linear)
    order = halves_of_pairs(head_dim).to(linear.weight.device)
    for name, parameter in linear.named_parameters():
        heads = parameter.detach().view(-1, head_dim, *parameter.shape[1:])
        linear._parameters[name] = nn.Parameter(heads[:, order].flatten(0, 1), requires_grad=False)


def _projections(attention: nn.Module) -> list[nn.Module | None]:
    return [attention._modules.get(name) for name in INPUTS]


def _can_join(parts: Sequence[nn.Module | None]) -> bool:
    """Whether maps can be one: of inputs of one width, and all with a bias or none."""
    if any(type(part) is not nn.Linear for part in parts):
        return False
    widths = {_weight(part).shape[1] for part in parts}
    return len(widths) == 1 and len({_bias(part) is None for part in parts}) == 1


def _weight(linear: nn.Module | None) -> Tensor:
    assert isinstance(linear, nn.Linear)
    return linear.weight.detach()


def _bias(linear: nn.Module | None) -> Tensor | None:
    assert isinstance(linear, nn.Linear)
    return None if linear.bias is None else linear.bias.detach()
