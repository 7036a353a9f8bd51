"""DFlash: a draft that computes a block of tokens in one forward.

Its keys and values of known positions are projected from hidden states of the target, without
attention or MLP. The rows of a block are the bonus token and mask tokens; they see all known
positions and one another, and row r predicts the token r positions after the bonus token.

Source: Chen et al., "DFlash: Block Diffusion for Flash Speculative Decoding", 2026; layouts as read
by vLLM's `qwen3_dflash` and transformers' `MuseGlimmerAssistantModel`.
"""

from abc import abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from specdecode_engine.batch.rotary_tables import RotaryLimits
from specdecode_engine.model.checkpoint.checkpoint import Shapes
from specdecode_engine.model.checkpoint.config_file import ConfigFile
from specdecode_engine.model.drafts import dflash_weights
from specdecode_engine.model.drafts.confidence_head import ConfidenceHead
from specdecode_engine.model.drafts.dflash_config import BlockConfig, DFlashConfig, is_dflash
from specdecode_engine.model.drafts.draft_head import HiddenStateHead
from specdecode_engine.model.drafts.eagle_weights import EMBEDDING, HEAD, take_target_ids
from specdecode_engine.model.drafts.markov_head import MarkovHead
from specdecode_engine.model.kv.kv_cache import KVCache
from specdecode_engine.model.kv.kv_views import KVView
from specdecode_engine.model.layers.layers import (
    Attention,
    DecoderLayer,
    Linear,
    Norm,
    QkNorm,
    map_by_layers,
    rotary_rows,
)
from specdecode_engine.model.layers.linears import MapKind
from specdecode_engine.model.layers.rope import build_angles
from specdecode_engine.model.target.language_model import LanguageModel, LanguageModelConfig
from specdecode_engine.model.target.weights import Weights

Config = TypeVar("Config", bound=BlockConfig)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BlockHead(HiddenStateHead[Config]):
    """A head that drafts a block in one forward, from context rows of its own."""

    markov: MarkovHead | None = None  # None: the tokens of a block do not depend on each other
    confidence: ConfidenceHead | None = None

    @abstractmethod
    def write_context(
        self, aux_hidden_states: Tensor, positions: Tensor, pool: KVCache, slot_mapping: Tensor
    ) -> None:
        """Compute the keys and values of known positions in all layers, and write them.

        Args:
            aux_hidden_states: [rows, width].
            positions: [rows] i64, in the rotary tables.
            slot_mapping: [rows] i64, rows of the pool.
        """

    @abstractmethod
    def forward(self, ids: Tensor, positions: Tensor, kv: KVView) -> Tensor:
        """Run the blocks after bonus tokens `ids` [B] i64, or the first rows of each.

        Args:
            positions: [B * rows] i64, in the rotary tables.

        Returns:
            What `logits` takes, [B, rows - first_row, hidden]: of the rows that draft a token.
        """


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DFlashHead(BlockHead[DFlashConfig]):
    """Qwen3's layers, and a projection of the target's hidden states to what they attend to."""

    fc: Linear  # [hidden, width]
    hidden_norm: Norm
    layers: tuple[DecoderLayer[Attention], ...]
    context_kv: Linear  # keys of all layers, then values of all: [2 * layers * kv_size, hidden]
    norm: Norm
    mask_embedding: Tensor  # [hidden]

    @classmethod
    def recognizes(cls, config: ConfigFile) -> bool:
        return is_dflash(config)

    @classmethod
    def read_config(cls, folder: Path, target: LanguageModelConfig) -> DFlashConfig:
        return DFlashConfig.load(folder, target)

    @classmethod
    def shapes(
        cls, config: DFlashConfig, names: Collection[str], target: LanguageModelConfig
    ) -> tuple[Shapes, Shapes]:
        stored = dflash_weights.stored_names(names)
        required, optional = dflash_weights.dflash_shapes(config, target.decoder.hidden_size)
        return dflash_weights.renamed(required, stored), dflash_weights.renamed(optional, stored)

    @classmethod
    def _assemble(
        cls,
        config: DFlashConfig,
        weights: Weights,
        limits: RotaryLimits,
        target: LanguageModel,
        folder: Path,
    ) -> Self:
        weights = replace(weights, store=dflash_weights.RenamedStore.of(weights.store))
        placement, decoder = weights.placement, config.decoder
        embedding = weights.take_or_share(EMBEDDING, target.embedding)
        names = [f"layers.{number}" for number in range(config.num_hidden_layers)]
        projections = (f"{name}.self_attn.{part}_proj" for part in "kv" for name in names)
        return cls(
            config=config,
            embedding=embedding,
            head=_head(weights, config, embedding, target.head),
            rotary_limits=limits,
            angles=build_angles(
                config.rope, decoder.head_dim, limits, placement.dtype, placement.device
            ),
            draft_to_target=take_target_ids(weights, config, folder),
            fc=weights.linear("fc"),
            hidden_norm=weights.norm("hidden_norm", decoder),
            layers=tuple(
                weights.decoder_layer(name, decoder, window)
                for name, window in zip(names, config.sliding_windows, strict=True)
            ),
            context_kv=weights.linear(*projections),
            norm=weights.norm("norm", decoder),
            mask_embedding=_mask_embedding(weights, config, embedding),
            **cls._take_own(config, weights),
        )

    @classmethod
    def _take_own(cls, config: DFlashConfig, weights: Weights) -> dict[str, Any]:
        """Take what this kind of head has besides the parts of DFlash."""
        return {}

    def fuse(self, aux_hidden_states: Tensor) -> Tensor:
        return self.hidden_norm(self.fc(aux_hidden_states.to(self.embedding.dtype)))

    def write_context(
        self, aux_hidden_states: Tensor, positions: Tensor, pool: KVCache, slot_mapping: Tensor
    ) -> None:
        rows, decoder = len(positions), self.config.decoder
        projected = self.context_kv(self.fuse(aux_hidden_states))
        shape = rows, 2, len(self.layers), decoder.num_key_value_heads, decoder.head_dim
        keys, values = projected.view(shape).unbind(1)
        rotary = rotary_rows(self.angles, positions)
        for number, layer in enumerate(self.layers):
            attention, k = layer.attention, keys[:, number]
            if isinstance(attention.qk_norm, QkNorm):
                k = attention.qk_norm.k(k)
            pool.turn_and_store(number, slot_mapping, k[:, :0], k, values[:, number], rotary)

    def forward(self, ids: Tensor, positions: Tensor, kv: KVView) -> Tensor:
        rows = len(positions) // len(ids)
        x, rotary = self.embed_block(ids, rows), rotary_rows(self.angles, positions)
        x = map_by_layers(self.layers, x, rotary, 0, kv)
        blocks = x.view(len(ids), rows, -1)
        drafting = blocks[:, self.config.first_row :].reshape(-1, x.shape[1])
        return self.norm(drafting).view(len(ids), rows - self.config.first_row, -1)

    def embed_block(self, ids: Tensor, rows: int) -> Tensor:
        """Return the inputs of blocks after bonus tokens ids [B] i64: [B * rows, hidden]."""
        bonus = functional.embedding(ids, self.embedding)[:, None]
        masks = self.mask_embedding.expand(len(ids), rows - 1, -1)
        return torch.cat((bonus, masks), dim=1).flatten(0, 1)


def _head(weights: Weights, config: BlockConfig, embedding: Tensor, shared: Linear) -> Linear:
    """Return what scores tokens: the checkpoint's, its own embedding if tied, or the target's."""
    is_own = HEAD not in weights and EMBEDDING in weights and config.tie_word_embeddings
    if is_own and config.draft_vocab_size == config.vocab_size:
        return weights.linears.make(embedding, kind=MapKind.HEAD, is_kept=True)
    return weights.linear_or_share("lm_head", shared)


def _mask_embedding(weights: Weights, config: BlockConfig, embedding: Tensor) -> Tensor:
    if dflash_weights.MASK_EMBEDDING in weights:
        return weights.take(dflash_weights.MASK_EMBEDDING)
    return embedding[config.mask_token_id].clone()  # a draft that is exchanged has a tensor to copy
