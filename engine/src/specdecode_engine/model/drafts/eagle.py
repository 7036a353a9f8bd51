"""EAGLE heads of all generations.

Sources: Li et al., "EAGLE", 2024, "EAGLE-2", 2024, and "EAGLE-3", 2025.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional

from specdecode_engine.batch.rotary_tables import RotaryLimits
from specdecode_engine.model.checkpoint.checkpoint import Shapes, TensorStore
from specdecode_engine.model.checkpoint.config_file import ConfigFile
from specdecode_engine.model.drafts import eagle_weights
from specdecode_engine.model.drafts.draft_config import HeadConfig
from specdecode_engine.model.drafts.draft_head import DraftHead
from specdecode_engine.model.drafts.eagle_config import Eagle1Config, Eagle3Config, is_parallel
from specdecode_engine.model.kv.kv_views import KVView, PagedView
from specdecode_engine.model.layers.layers import (
    Attention,
    DecoderLayer,
    Linear,
    Norm,
    map_by_layers,
    rotary_rows,
    widened,
)
from specdecode_engine.model.layers.linears import Placement
from specdecode_engine.model.layers.rope import build_angles
from specdecode_engine.model.target.language_model import LanguageModel, LanguageModelConfig
from specdecode_engine.model.target.weights import Weights


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Eagle1Head(DraftHead[Eagle1Config]):
    """EAGLE-1 and EAGLE-2: predicts the target's own last hidden state.

    It reads the target's last hidden state at i, after the final norm, and its output stands for
    the one at i + 1. So the target's own head scores the output.
    """

    pair: Linear  # [hidden, 2 * hidden]: the token's embedding first, then the hidden state
    layers: tuple[DecoderLayer[Attention], ...]  # the first has no norm before attention

    @classmethod
    def recognizes(cls, config: ConfigFile) -> bool:
        name = config.architecture
        return "eagle" in name.lower() and "Eagle3" not in name and not is_parallel(config)

    @classmethod
    def read_config(cls, folder: Path, target: LanguageModelConfig) -> Eagle1Config:
        return Eagle1Config.load(folder, target)

    @classmethod
    def shapes(
        cls, config: Eagle1Config, names: Collection[str], target: LanguageModelConfig
    ) -> tuple[Shapes, Shapes]:
        return eagle_weights.eagle1_shapes(config)

    @classmethod
    def _assemble(
        cls,
        config: Eagle1Config,
        weights: Weights,
        limits: RotaryLimits,
        target: LanguageModel,
        folder: Path,
    ) -> Self:
        names = (f"layers.{number}" for number in range(config.num_hidden_layers))
        return cls(
            config=config,
            embedding=weights.take_or_share(eagle_weights.EMBEDDING, target.embedding),
            head=weights.linear_or_share("lm_head", target.head),
            rotary_limits=limits,
            angles=_angles(config, limits, weights.placement),
            pair=weights.linear("fc"),
            layers=tuple(weights.decoder_layer(name, config.decoder) for name in names),
        )

    def fuse(self, aux_hidden_states: Tensor) -> Tensor:
        return aux_hidden_states.to(self.pair.weight.dtype)

    def forward(
        self, ids: Tensor, hidden: Tensor, positions: Tensor, kv: KVView
    ) -> tuple[Tensor, Tensor]:
        x, rotary = self._pair(ids, hidden), rotary_rows(self.angles, positions)
        x = map_by_layers(self.layers, x, rotary, 0, kv)
        return x, x

    def store_kv(self, ids: Tensor, hidden: Tensor, positions: Tensor, kv: PagedView) -> None:
        if len(self.layers) > 1:
            self.forward(ids, hidden, positions, kv)
            return
        rotary = rotary_rows(self.angles, positions)
        self.layers[0].store_kv(self._pair(ids, hidden), rotary, 0, kv)

    def _pair(self, ids: Tensor, hidden: Tensor) -> Tensor:
        token = functional.embedding(ids, self.embedding).to(hidden.dtype)
        return self.pair(torch.cat((token, hidden), dim=-1))


@dataclass(frozen=True, slots=True, eq=False)
class Fusion:
    """Norms and a linear map over aux hidden states [rows, width].

    Published heads norm nothing, the hidden states of all layers at once, or those of each layer
    separately.
    """

    norms: tuple[Norm, ...]  # each of an equal part; without norms nothing is normalized
    linear: Linear

    def __call__(self, aux_hidden_states: Tensor) -> Tensor:
        """Map to [rows, hidden]."""
        if self.norms:
            parts = aux_hidden_states.chunk(len(self.norms), dim=-1)
            normed = [norm(part) for norm, part in zip(self.norms, parts, strict=True)]
            aux_hidden_states = torch.cat(normed, dim=-1)
        return self.linear(aux_hidden_states)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Eagle3Head(DraftHead[Eagle3Config]):
    """EAGLE-3: drafts from several of the target's layers and its own last output."""

    fusion: Fusion | None  # None: the head reads the target's last hidden state unchanged
    token_norm: Norm
    hidden_norm: Norm
    layers: tuple[
        DecoderLayer[Attention], ...
    ]  # attention of the first reads token and hidden state
    norm: Norm

    @classmethod
    def recognizes(cls, config: ConfigFile) -> bool:
        return "Eagle3" in config.architecture and not is_parallel(config)

    @classmethod
    def read_config(cls, folder: Path, target: LanguageModelConfig) -> Eagle3Config:
        return Eagle3Config.load(folder, target)

    @classmethod
    def shapes(
        cls, config: Eagle3Config, names: Collection[str], target: LanguageModelConfig
    ) -> tuple[Shapes, Shapes]:
        prefix = eagle_weights.layer_prefix(names)
        return eagle_weights.eagle3_shapes(config, prefix, target.decoder.hidden_size)

    @classmethod
    def check(
        cls, config: Eagle3Config, checkpoint: TensorStore, target: LanguageModelConfig
    ) -> None:
        eagle_weights.check_width(config, checkpoint, target)
        checkpoint.check(*cls.shapes(config, checkpoint.tensors, target))

    @classmethod
    def _assemble(
        cls,
        config: Eagle3Config,
        weights: Weights,
        limits: RotaryLimits,
        target: LanguageModel,
        folder: Path,
    ) -> Self:
        prefix = eagle_weights.layer_prefix(weights.store.tensors)
        embedding = eagle_weights.take_embedding(weights, config, target.embedding, folder)
        return cls(
            config=config,
            embedding=embedding,
            head=eagle_weights.take_head(weights, config, embedding, target.head, folder),
            rotary_limits=limits,
            angles=_angles(config, limits, weights.placement),
            draft_to_target=eagle_weights.take_target_ids(weights, config, folder),
            fusion=_fusion(weights, config),
            token_norm=weights.norm(f"{prefix}.input_layernorm", config.decoder),
            hidden_norm=weights.norm(f"{prefix}.hidden_norm", config.decoder),
            layers=_eagle3_layers(weights, config, prefix),
            norm=weights.norm("norm", config.decoder),
            **cls._take_own(config, weights),
        )

    @classmethod
    def _take_own(cls, config: Eagle3Config, weights: Weights) -> dict[str, Any]:
        """Take what this kind of head has besides the parts of EAGLE-3."""
        return {}

    def fuse(self, aux_hidden_states: Tensor) -> Tensor:
        aux_hidden_states = aux_hidden_states.to(self.head.weight.dtype)
        return aux_hidden_states if self.fusion is None else self.fusion(aux_hidden_states)

    def forward(
        self, ids: Tensor, hidden: Tensor, positions: Tensor, kv: KVView
    ) -> tuple[Tensor, Tensor]:
        pair, normed_hidden = self._pair(ids, hidden)
        residual = normed_hidden if self.config.norm_before_residual else hidden
        rotary = rotary_rows(self.angles, positions)
        output = map_by_layers(self.layers, residual, rotary, 0, kv, read=pair)
        normed = self.norm(output)
        return normed, normed if self.config.norm_output else output

    def store_kv(self, ids: Tensor, hidden: Tensor, positions: Tensor, kv: PagedView) -> None:
        if len(self.layers) > 1:
            self.forward(ids, hidden, positions, kv)
            return
        pair, _ = self._pair(ids, hidden)
        self.layers[0].attention.store_kv(pair, rotary_rows(self.angles, positions), 0, kv)

    def _pair(self, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the first layer reads [rows, 2 * hidden], and the normed hidden states."""
        token = functional.embedding(ids, self.embedding).to(hidden.dtype)
        normed_hidden = self.hidden_norm(hidden)
        return torch.cat((self.token_norm(token), normed_hidden), dim=-1), normed_hidden

    def logits(self, normed: Tensor) -> Tensor:
        logits, scale = self.head(normed), self.config.logit_scale
        return logits if scale == 1.0 else widened(logits) * scale


def _angles(config: HeadConfig, limits: RotaryLimits, placement: Placement) -> Tensor:
    head_dim = config.decoder.head_dim
    return build_angles(config.rope, head_dim, limits, placement.dtype, placement.device)


def _eagle3_layers(
    weights: Weights, config: Eagle3Config, prefix: str
) -> tuple[DecoderLayer[Attention], ...]:
    names = eagle_weights.layer_names(config, prefix)
    windows = config.sliding_windows or (None,) * len(names)
    return tuple(
        weights.decoder_layer(name, config.decoder, window)
        for name, window in zip(names, windows, strict=True)
    )


def _fusion(weights: Weights, config: Eagle3Config) -> Fusion | None:
    if config.aux_spec.final:
        return None
    names = eagle_weights.fusion_norms(config)
    return Fusion(tuple(weights.norm(name, config.decoder) for name in names), weights.linear("fc"))
