"""A Llama: token ids in, hidden states and logits out; the cache is the caller's."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from specdecode_engine.model.checkpoint import Checkpoint, OpenStore, Placement, Shape
from specdecode_engine.model.errors import TensorError
from specdecode_engine.model.kv_views import KVView
from specdecode_engine.model.layers import DecoderLayer, Linear, Norm
from specdecode_engine.model.linears import Linears
from specdecode_engine.model.model_config import LlamaConfig
from specdecode_engine.model.rope import Angles, build_angles
from specdecode_engine.model.weights import Weights, decoder_shapes

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True, eq=False)
class Hidden:
    """What a forward pass leaves per row."""

    last: Tensor  # [rows, hidden], after the final norm: what `logits` takes
    aux_hidden_states: Tensor | None  # [rows, aux layers * hidden], not normed


@dataclass(frozen=True, slots=True, eq=False)
class Llama:
    """A decoder-only model with its weights; holds no state between passes."""

    config: LlamaConfig
    embedding: Tensor  # [vocab, hidden]
    layers: tuple[DecoderLayer, ...]
    norm: Norm
    head: Linear
    angles: Angles  # of every position below the context length

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device,
        context_length: int | None = None,
        progress: bool = False,
        open_store: OpenStore = Checkpoint.open,
        linears: Linears | None = None,
    ) -> "Llama":
        """Load a checkpoint, by default in its own type and for its own length.

        `open_store` finds the tensors; config.json is read from the folder in any case.
        Without `linears` every map keeps its plain weight.
        """
        config = LlamaConfig.load(folder)
        checkpoint = open_store(folder)
        checkpoint.check(*_shapes(config))
        placement = Placement(dtype or stored_dtype(folder, open_store), device)
        length = context_length or config.max_position_embeddings
        angles = build_angles(
            config.rope, config.decoder.head_dim, length, placement.dtype, placement.device
        )
        tensors = checkpoint.read(placement, label=f"loading {folder.name}", progress=progress)
        return cls._assemble(config, Weights(tensors, linears or Linears()), angles, folder)

    @classmethod
    def _assemble(
        cls, config: LlamaConfig, weights: Weights, angles: Angles, folder: Path
    ) -> "Llama":
        embedding = weights.take(EMBEDDING)
        head = embedding
        if HEAD in weights.tensors:
            head = weights.take(HEAD)
            if config.tie_word_embeddings:
                head = _tied(embedding, head, folder)
        names = (f"model.layers.{number}" for number in range(config.num_hidden_layers))
        return cls(
            config=config,
            embedding=embedding,
            layers=tuple(weights.decoder_layer(name, config.decoder) for name in names),
            norm=weights.norm("model.norm", config.decoder),
            head=weights.linears.make(head),
            angles=angles,
        )

    @property
    def context_length(self) -> int:
        """Positions that the rotary table holds; no position may reach it."""
        return self.angles.cos.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights and of hidden states."""
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.embedding.device

    def forward(
        self, ids: Tensor, positions: Tensor, kv: KVView, aux_layers: tuple[int, ...] = ()
    ) -> Hidden:
        """Run the rows `ids` at `positions` [rows] i64 through all layers.

        `aux_layers` names layers, ascending; the residual stream after each of them is returned,
        concatenated.
        """
        x = functional.embedding(ids, self.embedding)  # [rows, hidden]
        angles = self.angles.at(positions)
        collected: list[Tensor] = []
        for number, layer in enumerate(self.layers):
            x = layer(x, angles, number, kv)
            if number in aux_layers:
                collected.append(x)
        if len(collected) != len(aux_layers):
            last = len(self.layers) - 1
            raise ValueError(f"aux_layers is {aux_layers}; the model has layers 0..{last}")
        return Hidden(self.norm(x), torch.cat(collected, dim=-1) if collected else None)

    def logits(self, hidden: Tensor) -> Tensor:
        """Score the vocabulary for [rows, hidden]: [rows, vocab] f32, or f64 for such a model."""
        return widened(self.head(hidden))


def stored_dtype(folder: Path, open_store: OpenStore = Checkpoint.open) -> torch.dtype:
    """Read the type of a checkpoint's weights from its config, or else from its embedding."""
    known = LlamaConfig.load(folder).dtype
    if known is not None:
        return known
    embedding = open_store(folder).tensors.get(EMBEDDING)
    # Without an embedding, loading the checkpoint names what is missing.
    return torch.float32 if embedding is None else embedding.dtype


def widened(logits: Tensor) -> Tensor:
    """Give logits the type in which sampling computes."""
    return logits if logits.dtype == torch.float64 else logits.float()


def _shapes(config: LlamaConfig) -> tuple[dict[str, Shape], dict[str, Shape]]:
    # Required and optional tensors.
    required: dict[str, Shape] = {
        EMBEDDING: (config.vocab_size, config.decoder.hidden_size),
        "model.norm.weight": (config.decoder.hidden_size,),
    }
    for number in range(config.num_hidden_layers):
        prefix = f"model.layers.{number}"
        required |= decoder_shapes(prefix, config.decoder, config.decoder.hidden_size)
    head: dict[str, Shape] = {HEAD: (config.vocab_size, config.decoder.hidden_size)}
    return (required, head) if config.tie_word_embeddings else (required | head, {})


def _tied(embedding: Tensor, head: Tensor, folder: Path) -> Tensor:
    if not torch.equal(embedding, head):
        raise TensorError(
            folder,
            f"{HEAD} differs from {EMBEDDING}, but config.json sets tie_word_embeddings",
            "set tie_word_embeddings to false, or take both from the same checkpoint",
        )
    return embedding
