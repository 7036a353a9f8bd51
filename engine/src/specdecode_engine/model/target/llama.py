"""A Llama: token ids in, hidden states and logits out; the cache is the caller's."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from specdecode_engine.batch.rotary_tables import RotaryLimits
from specdecode_engine.model.checkpoint.checkpoint import (
    OpenStore,
    Shape,
    TensorError,
    TensorStore,
    TextModelStore,
)
from specdecode_engine.model.checkpoint.mtp_layout import without_modules
from specdecode_engine.model.checkpoint.quantized.store import open_tensors
from specdecode_engine.model.kv.kv_cache import RotaryRows
from specdecode_engine.model.kv.kv_views import KVView, PagedView
from specdecode_engine.model.layers.adapted_linear import AdaptedEmbedding
from specdecode_engine.model.layers.experts import Experts
from specdecode_engine.model.layers.layers import (
    Attention,
    DecoderLayer,
    Linear,
    Norm,
    map_and_collect,
    map_by_layers,
    rotary_rows,
    widened,
)
from specdecode_engine.model.layers.linears import DividedLinear, Linears, MapKind, Placement
from specdecode_engine.model.layers.rope import build_angles, make_rotary_limits
from specdecode_engine.model.layers.sparse_mlp import SparseMlp
from specdecode_engine.model.target.config import (
    EMBEDDED,
    NO_HIDDEN_STATES,
    AuxHiddenStates,
    LlamaConfig,
)
from specdecode_engine.model.target.language_model import LanguageModel, NeededRows
from specdecode_engine.model.target.sharding import ShardedStore, shard_config
from specdecode_engine.model.target.weights import Weights, decoder_shapes
from specdecode_engine.process.start_progress import ShowProgress
from specdecode_engine.ranks import ALONE, Ranks

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Llama(LanguageModel):
    """A model of Llama's shape, computed by our layers."""

    config: LlamaConfig
    layers: tuple[DecoderLayer[Attention], ...]
    norm: Norm
    # of each of config.ropes [2, rows of the rotary tables, head_dim / 2]: cosines and sines
    angles: tuple[Tensor, ...]
    embedding_scale: float | None  # rounded to the model's type
    adapted_embedding: AdaptedEmbedding | None = None  # adds what LoRA adapters do, scaled

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        config: LlamaConfig | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device,
        context_length: int | None = None,
        progress: ShowProgress | None = None,
        open_store: OpenStore | None = None,
        linears: Linears | None = None,
        ranks: Ranks = ALONE,
    ) -> "Llama":
        """Load a checkpoint, by default in its own type and for its own length.

        Args:
            config: of the whole model; read from the folder unless given.
            open_store: opens the tensors; by default those of the folder, as `config` has them.
            linears: makes the linear maps; by default their weights are not packed.
            ranks: among which the model is divided; the part of this one is loaded.

        Raises:
            CheckpointError: the model cannot be computed, or not by so many ranks.
        """
        config = config or LlamaConfig.load(folder)
        if open_store is None:
            checkpoint: TensorStore = open_tensors(folder, config.quantization)
        else:
            checkpoint = open_store(folder)
        skipped: tuple[str, ...] = ()
        if config.is_wrapped:
            checkpoint = text = TextModelStore.of(checkpoint)
            skipped = text.skipped
        checkpoint = without_modules(checkpoint)
        checkpoint.check(*llama_shapes(config))
        if ranks.size > 1:
            config = shard_config(config, ranks.size, folder)
            required, optional = llama_shapes(config)
            checkpoint = ShardedStore.of(checkpoint, required | optional, ranks)
        placement = Placement(dtype or config.dtype or stored_dtype(checkpoint), device)
        limits = make_rotary_limits(config.ropes, context_length or config.max_position_embeddings)
        with Weights.of(
            checkpoint,
            placement,
            linears or Linears(),
            label=f"loading {folder.name}",
            progress=progress,
        ) as weights:
            return cls._assemble(config, weights, limits, folder, skipped, ranks)

    @classmethod
    def _assemble(
        cls,
        config: LlamaConfig,
        weights: Weights,
        limits: RotaryLimits,
        folder: Path,
        skipped: tuple[str, ...],
        ranks: Ranks,
    ) -> "Llama":
        embedding = weights.take(EMBEDDING)
        head = _read_head(config, weights, embedding, folder, ranks)
        dtype, device = weights.placement.dtype, weights.placement.device
        head_dim = config.decoder.head_dim
        angles = (build_angles(rope, head_dim, limits, dtype, device) for rope in config.ropes)
        layers = (
            weights.decoder_layer(
                f"model.layers.{number}",
                config.decoder,
                window,
                config.sparse_mlp_of(number),
                ranks,
            )
            for number, window in enumerate(config.sliding_windows)
        )
        return cls(
            config=config,
            embedding=embedding,
            layers=tuple(layers),
            norm=weights.norm("model.norm", config.decoder),
            head=head,
            rotary_limits=limits,
            angles=tuple(angles),
            embedding_scale=rounded_scale(config.embedding_scale, dtype),
            skipped_tensors=skipped,
        )

    @property
    def mixtures(self) -> tuple[Experts, ...]:
        blocks = [layer.mlp for layer in self.layers]
        return tuple(block.experts for block in blocks if isinstance(block, SparseMlp))

    def embed(self, ids: Tensor) -> Tensor:
        x = functional.embedding(ids, self.embedding)
        if self.embedding_scale is not None:
            x = x * self.embedding_scale
        return x if self.adapted_embedding is None else self.adapted_embedding(x, ids)

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        kv: KVView,
        aux_spec: AuxHiddenStates = NO_HIDDEN_STATES,
        needed: NeededRows | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        x, rotary = self.embed(ids), self._rotary_by_layer(positions)
        whole = len(self.layers) - (needed is not None)
        collected = [x] if EMBEDDED in aux_spec.layers else []
        x, found = self._map_first(whole, x, rotary, kv, aux_spec.layers)
        collected += found
        if needed is not None:
            x = self._last_layer(x, rotary[-1], kv, needed)
        if len(collected) != len(aux_spec.layers):
            last = len(self.layers) - 1
            raise ValueError(f"aux layers are {aux_spec.layers}; the model has layers 0..{last}")
        normed = self.norm(x)
        if aux_spec.final:
            return normed, normed
        return normed, torch.cat(collected, dim=-1) if collected else None

    def store_kv(self, ids: Tensor, positions: Tensor, kv: PagedView) -> None:
        x, rotary, last = self.embed(ids), self._rotary_by_layer(positions), len(self.layers) - 1
        x, _ = self._map_first(last, x, rotary, kv, ends=())
        self.layers[last].store_kv(x, rotary[last], last, kv)

    def _map_first(
        self, count: int, x: Tensor, rotary: list[RotaryRows], kv: KVView, ends: tuple[int, ...]
    ) -> tuple[Tensor, list[Tensor]]:
        """Map the residual stream by the first `count` layers; return also what `ends` give."""
        collected: list[Tensor] = []
        for run in layer_runs(self.config.rope_indices[:count]):
            layers = self.layers[run.start : run.stop]
            x, found = map_and_collect(layers, x, rotary[run.start], run.start, kv, ends)
            collected += found
        return x, collected

    def _last_layer(self, x: Tensor, rotary: RotaryRows, kv: KVView, needed: NeededRows) -> Tensor:
        """Map the residual stream [rows, hidden] to that of the needed rows [n, hidden]."""
        number = len(self.layers) - 1
        assert isinstance(kv, PagedView)
        self.layers[number].store_kv(x, rotary, number, kv)
        x = x[needed.rows]
        if needed.kv is None:
            return x
        cosines, sines = rotary
        rotary = cosines[needed.rows], sines[needed.rows]
        return map_by_layers(self.layers[number:], x, rotary, number, needed.kv)

    def _rotary_by_layer(self, positions: Tensor) -> list[RotaryRows]:
        rotary = [rotary_rows(angles, positions) for angles in self.angles]
        return [rotary[rope] for rope in self.config.rope_indices]

    def logits(self, hidden: Tensor) -> Tensor:
        logits, cap = self.head(hidden), self.config.logit_softcap
        return logits if cap is None else self.norm.ops.softcap(widened(logits), cap)


@cache
def layer_runs(rope_indices: tuple[int, ...]) -> tuple[range, ...]:
    """Split layers where angles change."""
    runs, start, last = list[range](), 0, len(rope_indices) - 1
    for layer, rope in enumerate(rope_indices):
        if layer == last or rope_indices[layer + 1] != rope:
            runs.append(range(start, layer + 1))
            start = layer + 1
    return tuple(runs)


def rounded_scale(scale: float | None, dtype: torch.dtype) -> float | None:
    """Cast a factor of embeddings as transformers does: to float32, then to the model's type."""
    return None if scale is None else torch.tensor(scale, dtype=torch.float32).to(dtype).item()


def stored_dtype(store: TensorStore) -> torch.dtype:
    """Return the type of a checkpoint's embedding, for a config.json that declares none."""
    embedding = store.tensors.get(EMBEDDING)
    # Without an embedding, loading the checkpoint names what is missing.
    return torch.float32 if embedding is None else embedding.dtype


def llama_shapes(config: LlamaConfig) -> tuple[dict[str, Shape], dict[str, Shape]]:
    """Name the required and the optional tensors of a Llama."""
    required: dict[str, Shape] = {
        EMBEDDING: (config.vocab_size, config.decoder.hidden_size),
        "model.norm.weight": (config.decoder.hidden_size,),
    }
    for number in range(config.num_hidden_layers):
        prefix = f"model.layers.{number}"
        required |= decoder_shapes(
            prefix,
            config.decoder,
            config.decoder.hidden_size,
            sparse_mlp=config.sparse_mlp_of(number),
        )
    head: dict[str, Shape] = {HEAD: (config.head_rows, config.decoder.hidden_size)}
    return (required, head) if config.tie_word_embeddings else (required | head, {})


def _read_head(
    config: LlamaConfig, weights: Weights, embedding: Tensor, folder: Path, ranks: Ranks
) -> Linear:
    """Read what scores tokens, or this rank's share of it."""
    own, is_tied = config.own_head_rows, HEAD not in weights or config.tie_word_embeddings
    if not is_tied:
        stored = weights.take_map(HEAD, kind=MapKind.HEAD)
        head = weights.linears.make(stored, kind=MapKind.HEAD)
    else:
        tied = embedding if own is None else embedding[ranks.rank * own : (ranks.rank + 1) * own]
        if HEAD in weights:
            _check_tied(tied, weights.take(HEAD), folder)
        head = weights.linears.make(tied, kind=MapKind.HEAD, is_kept=True)
    return head if own is None else DividedLinear.of(head, ranks)


def _check_tied(embedding: Tensor, head: Tensor, folder: Path) -> None:
    if not torch.equal(embedding, head):
        raise TensorError(
            folder,
            f"{HEAD} differs from {EMBEDDING}, but config.json sets tie_word_embeddings",
            "set tie_word_embeddings to false, or take both from the same checkpoint",
        )
