"""Replaces the parts of a network whose rows would depend on their batch."""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from specdecode_engine.batch.rotary_tables import RotaryLimits
from specdecode_engine.model.layers.latent_attention import LatentAttention, LatentMaps, cut_by_head
from specdecode_engine.model.layers.layers import Linear
from specdecode_engine.model.layers.linears import DividedLinear, Linears, MapKind, SummedLinear
from specdecode_engine.model.target.head_order import halves_of_pairs, order_after
from specdecode_engine.model.target.transformers_config import UnsupportedModel
from specdecode_engine.model.transformers.attention import ForwardState, PagedAttention
from specdecode_engine.model.transformers.attention_form import (
    INPUTS,
    AttentionForm,
    Rotation,
    recognise_attention,
)
from specdecode_engine.model.transformers.division import DividedModules
from specdecode_engine.model.transformers.gated_delta_net import (
    OUT_PROJ,
    RowGatedDeltaNet,
    recognise_delta_net,
)
from specdecode_engine.model.transformers.latent_form import (
    LATENTS,
    OUTPUT,
    LatentForm,
    recognise_latent_attention,
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
from specdecode_engine.model.transformers.plain_maps import (
    bias_of,
    can_join,
    can_sort_heads,
    join_biases,
    projections,
    reorder,
    sort_heads,
    take_gate,
    weight_of,
)
from specdecode_engine.model.transformers.recognition import (
    NormKind,
    norm_eps,
    recognise_mlp,
    recognise_norm,
)
from specdecode_engine.model.transformers.recurrent_module import RecurrentModule
from specdecode_engine.model.transformers.rotary_tables import rotary_tables
from specdecode_engine.model.transformers.row_attention import (
    AttentionMaps,
    QueryFactors,
    RowAttention,
)
from specdecode_engine.model.transformers.row_latent_attention import RowLatentAttention
from specdecode_engine.model.transformers.row_layer import RowDecoderLayer, recognise_layer
from specdecode_engine.model.transformers.row_norms import JoinedNorms
from specdecode_engine.model.transformers.short_convolution import (
    IN_PROJ,
    RowConvolution,
    recognise_convolution,
)
from specdecode_kernels.torch.elementwise import accumulation_dtype


class Replacer:
    """Replaces modules of one network; each replaced weight is freed before the next is packed."""

    def __init__(
        self,
        linears: Linears,
        dtype: torch.dtype,
        device: torch.device,
        limits: RotaryLimits,
        state: ForwardState,
        head: nn.Module | None = None,
        parts: DividedModules | None = None,
    ) -> None:
        """Replace modules of the part of a network that one rank has.

        Args:
            head: scores of the vocabulary; it is whole in the network, and divided here.
            parts: what computes with the other ranks.
        """
        self._linears = linears
        self._dtype = dtype
        self._device = device
        self._limits = limits
        self._state = state
        self._head = head
        self._parts = parts = parts or DividedModules()
        self._mixtures = MixtureReplacer(linears, dtype, self._norm, self._mlp, parts.take_ranks)
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
        self._parts.check_taken()

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
            or self._recurrent(module)
            or self._latent_attention(module)
            or self._mlp(module)
            or self._norm(module)
            or self._mixtures.replacement(module)
        )

    def _attention(self, module: nn.Module) -> RowAttention | None:
        paged = getattr(module, "paged_attention", None)
        if not isinstance(paged, PagedAttention) or not can_join(projections(module)):
            return None
        joined = self._parts.row_normed.get(module)
        form = joined.form if joined else recognise_attention(module, self._partial_angles(module))
        if form is None or not self._has_angles(form):
            return None
        read = [module.get_submodule(name) for name in form.norms]
        if joined is not None:
            read = joined.whole_norms(read, self._parts.ranks)
        norms = tuple(norm for norm in map(self._norm, read) if norm is not None)
        if len(norms) < len(form.norms) or not can_sort_heads(norms, form):
            return None
        gate = None if form.gate is None else module.get_submodule(form.gate)
        if form.gate == INPUTS[0]:
            gate = take_gate(module, form.head_dim)
        sort_heads(module, norms, form)
        qkv, widths = self._joined(projections(module))
        maps = AttentionMaps(
            qkv,
            widths,
            self._make(module.get_submodule(form.output)),
            None if gate is None else self._make(gate),
        )
        placed: tuple[RowModule, ...] | JoinedNorms = norms
        if joined is not None:
            placed = JoinedNorms(norms, joined.widths, widths, self._parts.ranks)
            del self._parts.row_normed[module]
        return RowAttention(self._linears.ops, maps, placed, form, paged, self._query_factors(form))

    def _partial_angles(self, module: nn.Module) -> int | None:
        """Return the angles of a head if these turn a part of it."""
        half = getattr(module, "head_dim", 0) // 2
        angles = next(iter(self._angles)) if len(self._angles) == 1 else None
        return angles if angles is not None and angles < half else None

    def _recurrent(self, module: nn.Module) -> RecurrentModule | None:
        convolution = recognise_convolution(module)
        if convolution is None:
            return self._delta_net(module)
        first, last = (self._make(module.get_submodule(name)) for name in (IN_PROJ, OUT_PROJ))
        return RowConvolution(convolution, module, (first, last), self._state)

    def _delta_net(self, module: nn.Module) -> RowGatedDeltaNet | None:
        form = recognise_delta_net(module)
        if form is None:
            return None
        parts = [module.get_submodule(name) for name in form.inputs]
        if not can_join(parts):
            return None
        for name, order in form.orders.items():
            reorder(module.get_submodule(name), order)
        inputs, _ = self._joined(parts)
        maps = inputs, self._make(module.get_submodule(OUT_PROJ))
        return RowGatedDeltaNet(self._linears.ops, form, module, maps, self._state)

    def _latent_attention(self, module: nn.Module) -> RowLatentAttention | None:
        paged = getattr(module, "paged_attention", None)
        if not isinstance(paged, PagedAttention) or not paged.is_latent:
            return None
        form = recognise_latent_attention(module)
        if form is None or self._angles != {form.sizes.qk_rope_head_dim // 2}:
            raise UnsupportedModel(
                f"config.json has kv_lora_rank, but {paged.path} does not compute multi-head "
                "latent attention as DeepSeek-V3 does; this model type is not supported"
            )
        maps = self._latent_maps(module, form)
        attention = LatentAttention(self._linears.ops, maps, form.sizes, form.heads, form.params)
        return RowLatentAttention(attention, paged)

    def _latent_maps(self, module: nn.Module, form: LatentForm) -> LatentMaps:
        sizes, (down, norm, expand) = form.sizes, LATENTS
        *first, up = (module.get_submodule(name) for name in form.queries)
        latents = module.get_submodule(down)
        if form.rotation is Rotation.PAIRS:
            halves = halves_of_pairs(sizes.qk_rope_head_dim)
            reorder(up, order_after(sizes.qk_nope_head_dim, halves))
            reorder(latents, order_after(sizes.kv_lora_rank, halves))
        joined, widths = self._joined([first[0] if first else up, latents])
        expansion = module.get_submodule(expand)
        keys, values = (
            self._linears.pack(part, MapKind.HEADS)
            for part in cut_by_head(weight_of(expansion), form.heads, sizes)
        )
        expansion._parameters["weight"] = None
        return LatentMaps(
            joined,
            [widths[0], sizes.kv_lora_rank, sizes.qk_rope_head_dim],
            (self._rms_norm(first[1]), self._make(up)) if first else None,
            self._rms_norm(module.get_submodule(norm)),
            keys,
            values,
            self._make(module.get_submodule(OUTPUT)),
        )

    def _rms_norm(self, module: nn.Module) -> RowRmsNorm:
        norm = self._norm(module)
        if not isinstance(norm, RowRmsNorm):
            raise UnsupportedModel(
                f"{type(module).__name__} of latents is not an RMS norm; this model type is not "
                "supported"
            )
        return norm

    def _has_angles(self, form: AttentionForm) -> bool:
        """Whether the rotary tables have what an attention module reads."""
        if form.temperature is not None and len(self._limits.limits) > 1:
            return False
        return form.rotation is Rotation.NONE or self._angles == {form.rotated // 2}

    def _query_factors(self, form: AttentionForm) -> QueryFactors | None:
        if form.temperature is None:
            return None
        return QueryFactors.of(form.temperature, self._limits.rows[0], self._device)

    def _fuse_qkv(self, attention: nn.Module) -> None:
        """Make the projections of queries, keys and values one map."""
        parts = projections(attention)
        if not can_join(parts):
            return
        shared = SharedLinear(*self._joined(parts))
        for index, name in enumerate(INPUTS):
            attention._modules[name] = RowLinearPart(shared, index)

    def _joined(self, parts: Sequence[nn.Module | None]) -> tuple[Linear, list[int]]:
        """Make several maps of one input one map, and free each; also return their outputs."""
        sizes = [weight_of(part).shape[0] for part in parts]
        biases = [bias_of(part) for part in parts]
        first = weight_of(parts[0])
        weight = first.new_empty(sum(sizes), first.shape[1])
        del first
        for part, rows in zip(parts, weight.split_with_sizes(sizes), strict=True):
            rows.copy_(weight_of(part))
            assert part is not None
            part._parameters["weight"] = None
        return self._linears.make(weight, join_biases(biases, sizes)), sizes

    def _make(self, module: nn.Module) -> Linear:
        weight, bias = weight_of(module), bias_of(module)
        is_kept = weight.data_ptr() in self._shared
        if module is self._head:
            return self._make_head(weight, bias, is_kept)
        made, ranks = (
            self._linears.make(weight, bias, is_kept=is_kept),
            self._parts.take_ranks(module),
        )
        return made if ranks.size == 1 else SummedLinear.of(made, ranks)

    def _make_head(self, weight: Tensor, bias: Tensor | None, is_kept: bool) -> Linear:
        """Make the map of this rank's share of the vocabulary, of all of it if it has no shares."""
        ranks = self._parts.ranks
        size, rank = ranks.size, ranks.rank
        is_divided = size > 1 and len(weight) % size == 0
        if is_divided:
            own = weight.chunk(size)[rank]
            weight = own if is_kept else own.clone()
            bias = None if bias is None else bias.chunk(size)[rank]
        made = self._linears.make(weight, bias, MapKind.HEAD, is_kept=is_kept)
        return DividedLinear.of(made, ranks) if is_divided else made

    def _mlp(self, module: nn.Module) -> RowGatedMlp | None:
        names = recognise_mlp(module, is_silu)
        if names is None:
            return None
        parts = [module.get_submodule(name) for name in names.gate_up]
        if not can_join(parts):
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
