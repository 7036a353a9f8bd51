"""Multi-token prediction (MTP) heads: modules of the target's checkpoint.

Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 2.2; SGLang and vLLM draft with
the first module again and again (NextN), or with one module for each draft step (multi-layer
EAGLE). With e the embedding of a token and h a hidden state, a row computes

    z = norm(layer(projection [token_norm(e), hidden_norm(h)]))

The target's head scores z. Which hidden states are read is a property of the architecture; see
`ModuleInputs`.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from specdecode_engine.batch.rotary_tables import RotaryLimits
from specdecode_engine.model.checkpoint.checkpoint import Shapes, StorePart, TensorStore
from specdecode_engine.model.checkpoint.config_file import ConfigFile
from specdecode_engine.model.checkpoint.mtp_layout import MtpLayout, MtpModules
from specdecode_engine.model.checkpoint.quantized.store import open_checkpoint
from specdecode_engine.model.drafts.draft_head import DraftHead
from specdecode_engine.model.drafts.latent_weights import read_latent_layer
from specdecode_engine.model.drafts.mtp_config import (
    MtpChainConfig,
    MtpConfig,
    count_modules,
    is_export,
)
from specdecode_engine.model.kv.kv_views import KVView, PagedView
from specdecode_engine.model.layers.layers import (
    DecoderLayer,
    Linear,
    Norm,
    SelfAttention,
    map_by_layers,
    rotary_rows,
)
from specdecode_engine.model.layers.linears import Placement
from specdecode_engine.model.layers.rope import build_angles
from specdecode_engine.model.target.head_order import pad_angles
from specdecode_engine.model.target.language_model import LanguageModel, LanguageModelConfig
from specdecode_engine.model.target.weights import Weights, decoder_shapes, linear_shapes


@dataclass(frozen=True, slots=True, eq=False)
class MtpModule:
    """One module with its weights."""

    token_norm: Norm
    hidden_norm: Norm
    projection: Linear  # [hidden, 2 * hidden]
    layer: DecoderLayer[SelfAttention]
    norm: Norm | None
    is_hidden_first: bool
    is_output_normed: bool  # what the next row or module reads

    @classmethod
    def read(cls, config: MtpConfig, number: int, weights: Weights) -> "MtpModule":
        """Read the module of that number."""
        names = config.layout.at(number)
        return cls(
            token_norm=weights.norm(names.token_norm, config.decoder),
            hidden_norm=weights.norm(names.hidden_norm, config.decoder),
            projection=weights.linear(names.projection),
            layer=_read_layer(config, names.layer, weights),
            norm=None
            if names.output_norm is None
            else weights.norm(names.output_norm, config.decoder),
            is_hidden_first=names.is_hidden_first,
            is_output_normed=config.inputs.is_output_normed,
        )

    def __call__(
        self, token: Tensor, hidden: Tensor, rotary: tuple[Tensor, Tensor], layer: int, kv: KVView
    ) -> tuple[Tensor, Tensor]:
        """Map embeddings and hidden states [rows, hidden] to hidden states.

        Args:
            layer: of the view, whose keys and values the module has.

        Returns:
            What is scored, and what the next row or module reads.
        """
        output = map_by_layers((self.layer,), self.project(token, hidden), rotary, layer, kv)
        normed = output if self.norm is None else self.norm(output)
        return normed, normed if self.is_output_normed else output

    def project(self, token: Tensor, hidden: Tensor) -> Tensor:
        """Map embeddings and hidden states [rows, hidden] to what the layer reads."""
        parts = self.token_norm(token), self.hidden_norm(hidden)
        return self.projection(torch.cat(parts[::-1] if self.is_hidden_first else parts, dim=-1))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MtpHead(DraftHead[MtpConfig]):
    """Modules of a checkpoint, of which the first drafts; embedding and head are the target's."""

    modules: tuple[MtpModule, ...]
    embed: Callable[[Tensor], Tensor]
    score: Callable[[Tensor], Tensor]
    # [rows of the rotary tables, 1]: 0 at position 0, else 1; None: no embedding is zeroed
    token_factors: Tensor | None

    @classmethod
    def recognizes(cls, config: ConfigFile) -> bool:
        modules = count_modules(config.file.parent)
        return modules == 1 or (is_export(config) and not modules)

    @classmethod
    def read_config(cls, folder: Path, target: LanguageModelConfig) -> MtpConfig:
        return MtpConfig.load(folder, target)

    @classmethod
    def open_tensors(cls, folder: Path) -> TensorStore:
        """Open the tensors of the modules; those of a target next to them are the target's."""
        store = open_checkpoint(folder)
        modules = MtpModules.find(store.tensors)
        names = frozenset() if modules is None else modules.names(store.tensors)
        return StorePart.of(store, names)

    @classmethod
    def shapes(
        cls, config: MtpConfig, names: Collection[str], target: LanguageModelConfig
    ) -> tuple[Shapes, Shapes]:
        shapes: Shapes = {}
        for number in config.used_numbers:
            shapes = {**shapes, **module_shapes(config, number)}
        return shapes, {}

    @classmethod
    def check(cls, config: MtpConfig, checkpoint: TensorStore, target: LanguageModelConfig) -> None:
        required, optional = cls.shapes(config, checkpoint.tensors, target)
        for number in config.numbers:
            optional |= module_shapes(config, number) | copied_shapes(config, number)
        checkpoint.check(required, optional)

    @classmethod
    def _assemble(
        cls,
        config: MtpConfig,
        weights: Weights,
        limits: RotaryLimits,
        target: LanguageModel,
        folder: Path,
    ) -> Self:
        return cls(
            config=config,
            embedding=target.embedding,
            head=target.head,
            rotary_limits=limits,
            angles=module_angles(config, limits, weights.placement),
            modules=tuple(MtpModule.read(config, n, weights) for n in config.used_numbers),
            embed=target.embed,
            score=target.logits,
            token_factors=token_factors(config.layout, limits, weights.placement),
        )

    def fuse(self, aux_hidden_states: Tensor) -> Tensor:
        return aux_hidden_states.to(self.embedding.dtype)

    def forward(
        self, ids: Tensor, hidden: Tensor, positions: Tensor, kv: KVView
    ) -> tuple[Tensor, Tensor]:
        return self.forward_module(0, ids, hidden, positions, kv)

    def forward_module(
        self, module: int, ids: Tensor, hidden: Tensor, positions: Tensor, kv: KVView
    ) -> tuple[Tensor, Tensor]:
        """Run rows of one module, which has that layer of the view; see `forward`."""
        token, rotary = self._embed(ids, hidden, positions), rotary_rows(self.angles, positions)
        return self.modules[module](token, hidden, rotary, module, kv)

    def store_kv(self, ids: Tensor, hidden: Tensor, positions: Tensor, kv: PagedView) -> None:
        module, token = self.modules[0], self._embed(ids, hidden, positions)
        rotary = rotary_rows(self.angles, positions)
        module.layer.store_kv(module.project(token, hidden), rotary, 0, kv)

    def _embed(self, ids: Tensor, hidden: Tensor, positions: Tensor) -> Tensor:
        token = self.embed(ids).to(hidden.dtype)
        if self.token_factors is None:
            return token
        last = len(self.token_factors) - 1
        return token * self.token_factors.index_select(0, positions.clamp(max=last))

    def logits(self, normed: Tensor) -> Tensor:
        return self.score(normed)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MtpChainHead(MtpHead):
    """All modules of a checkpoint, each for one draft step."""

    @classmethod
    def recognizes(cls, config: ConfigFile) -> bool:
        return count_modules(config.file.parent) > 1

    @classmethod
    def read_config(cls, folder: Path, target: LanguageModelConfig) -> MtpChainConfig:
        return MtpChainConfig.load(folder, target)


def _read_layer(config: MtpConfig, prefix: str, weights: Weights) -> DecoderLayer[SelfAttention]:
    if config.decoder.latent is not None:
        return read_latent_layer(weights, prefix, config.decoder, config.sparse_mlp)
    return weights.decoder_layer(prefix, config.decoder, config.window, config.sparse_mlp)


def module_shapes(config: MtpConfig, number: int) -> Shapes:
    """Name the tensors of one module."""
    names, hidden = config.layout.at(number), config.decoder.hidden_size
    norms = filter(None, (names.token_norm, names.hidden_norm, names.output_norm))
    layer = decoder_shapes(names.layer, config.decoder, hidden, sparse_mlp=config.sparse_mlp)
    return {
        **{f"{norm}.weight": (hidden,) for norm in norms},
        **linear_shapes(names.projection, hidden, 2 * hidden, bias=False),
        **layer,
    }


def copied_shapes(config: MtpConfig, number: int) -> Shapes:
    """Name the copies of the target's embedding and head, which are not read."""
    shape = (config.vocab_size, config.decoder.hidden_size)
    return dict.fromkeys(config.layout.at(number).copies, shape)


def module_angles(config: MtpConfig, limits: RotaryLimits, placement: Placement) -> Tensor:
    """Tabulate cosines and sines [2, rows of the rotary tables, head_dim / 2]."""
    decoder, device = config.decoder, placement.device
    rotary_dim = decoder.rotary_dim or decoder.head_dim
    angles = build_angles(config.rope, rotary_dim, limits, placement.dtype, device)
    return pad_angles(angles, decoder.head_dim)


def token_factors(layout: MtpLayout, limits: RotaryLimits, placement: Placement) -> Tensor | None:
    """Return [rows of the rotary tables, 1]: 0 where embeddings are zeroed, else 1."""
    if not layout.zeroes_first_row:
        return None
    factors = torch.ones(sum(limits.rows), 1, dtype=placement.dtype)
    for limit in limits.limits:
        factors[limits.first_row(limit)] = 0
    return factors.to(placement.device)
