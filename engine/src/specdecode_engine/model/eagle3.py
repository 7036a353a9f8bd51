"""The EAGLE-3 head: drafts from several of the target's layers and its own last output.

Source: Li et al., "EAGLE-3", 2025. A row pairs the hidden state at position i with the token at
i + 1, has rotary position i and predicts the token at i + 2. The first row after known text gets
`fuse(aux_hidden_states)`; a row after a drafted token gets the `recurrent` output of the row before
it, which is never fused again.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from specdecode_engine.model.checkpoint import Checkpoint, Placement, Shape
from specdecode_engine.model.draft_vocabulary import (
    load_head,
    load_target_ids,
    vocabulary_shapes,
)
from specdecode_engine.model.eagle3_config import LAYER_IDS, Eagle3Config
from specdecode_engine.model.eagle_head import AuxHiddenStates, DraftHidden
from specdecode_engine.model.errors import DraftMismatch, TensorError
from specdecode_engine.model.fusion import Fusion, fusion_shapes, load_fusion
from specdecode_engine.model.kv_views import KVView
from specdecode_engine.model.layers import DecoderLayer, Linear, Norm
from specdecode_engine.model.linears import Linears
from specdecode_engine.model.llama import Llama, widened
from specdecode_engine.model.model_config import LlamaConfig
from specdecode_engine.model.rope import Angles, build_angles
from specdecode_engine.model.weights import Weights, decoder_shapes

EMBEDDING = "embed_tokens.weight"


@dataclass(frozen=True, slots=True, eq=False)
class Eagle3Head:
    """The head with its weights; its cache has one layer and is the caller's."""

    config: Eagle3Config
    embedding: Tensor  # [vocab, hidden], the target's own unless the checkpoint has another
    fusion: Fusion | None
    token_norm: Norm
    hidden_norm: Norm
    layer: DecoderLayer  # its attention reads token and hidden state side by side
    norm: Norm
    head: Linear  # [draft_vocab, hidden]
    draft_to_target: Tensor | None  # [draft_vocab] i64
    angles: Angles

    @classmethod
    def load(
        cls,
        folder: Path,
        target: Llama,
        *,
        progress: bool = False,
        linears: Linears | None = None,
    ) -> "Eagle3Head":
        """Load a head in the target's type, onto its device and for its length.

        Rotary frequencies are the head's own, which it was trained with. The number of tabulated
        positions follows the target; the head's max_position_embeddings is ignored.
        """
        config = Eagle3Config.load(folder, target.config)
        checkpoint = Checkpoint.open(folder)
        prefix = _layer_prefix(checkpoint)
        _check_width(config, checkpoint, target.config)
        checkpoint.check(*_shapes(config, prefix, target.config.decoder.hidden_size))
        placement = Placement(target.dtype, target.device)
        angles = build_angles(
            config.rope, config.decoder.head_dim, target.context_length, target.dtype, target.device
        )
        tensors = checkpoint.read(placement, label=f"loading {folder.name}", progress=progress)
        weights = Weights(tensors, linears or Linears())
        embedding = _embedding(weights, config, target, folder)
        return cls(
            config=config,
            embedding=embedding,
            fusion=load_fusion(weights, config),
            token_norm=weights.norm(f"{prefix}.input_layernorm", config.decoder),
            hidden_norm=weights.norm(f"{prefix}.hidden_norm", config.decoder),
            layer=weights.decoder_layer(prefix, config.decoder),
            norm=weights.norm("norm", config.decoder),
            head=load_head(weights, config, embedding, target.head, folder),
            draft_to_target=load_target_ids(weights, config, target.device, folder),
            angles=angles,
        )

    @property
    def aux_spec(self) -> AuxHiddenStates:
        """What the head reads of the target."""
        return self.config.aux_spec

    def fuse(self, aux_hidden_states: Tensor) -> Tensor:
        """Map aux hidden states [rows, width] to hidden states [rows, hidden]."""
        aux_hidden_states = aux_hidden_states.to(self.head.weight.dtype)
        return aux_hidden_states if self.fusion is None else self.fusion(aux_hidden_states)

    def forward(self, ids: Tensor, hidden: Tensor, positions: Tensor, kv: KVView) -> DraftHidden:
        """Run rows: ids [rows] i64 of the target's vocabulary, hidden [rows, hidden]."""
        token = functional.embedding(ids, self.embedding).to(hidden.dtype)
        normed_hidden = self.hidden_norm(hidden)
        pair = torch.cat((self.token_norm(token), normed_hidden), dim=-1)
        residual = normed_hidden if self.config.norm_before_residual else hidden
        attended = self.layer.attention(pair, self.angles.at(positions), 0, kv)
        output = self.layer.finish(residual, attended)
        normed = self.norm(output)
        return DraftHidden(normed, normed if self.config.norm_output else output)

    def logits(self, normed: Tensor) -> Tensor:
        """Score the draft's vocabulary: [rows, draft_vocab] f32, or f64 for such a head."""
        return widened(self.head(normed))


def _layer_prefix(checkpoint: Checkpoint) -> str:
    # Published heads call their only layer by one of two names.
    published = any(name.startswith("midlayer.") for name in checkpoint.tensors)
    indexed = any(name.startswith("layers.0.") for name in checkpoint.tensors)
    return "layers.0" if indexed and not published else "midlayer"


def check_fit(folder: Path, target: LlamaConfig) -> None:
    """Raise unless the head in `folder` can belong to a target like this; reads no weights."""
    _check_width(Eagle3Config.load(folder, target), Checkpoint.open(folder), target)


def _check_width(config: Eagle3Config, checkpoint: Checkpoint, target: LlamaConfig) -> None:
    stored = checkpoint.tensors.get("fc.weight")
    layers = list(config.aux_spec.layers)
    width = config.aux_spec.width(target.decoder.hidden_size)
    if layers and stored is not None and len(stored.shape) == 2 and stored.shape[1] != width:
        raise DraftMismatch(
            f"{stored.file}: fc.weight reads {stored.shape[1]} features, but layers {layers} of "
            f"the target give {len(layers)} x {target.decoder.hidden_size} = {width}; "
            f"correct {LAYER_IDS} in config.json, or use a head made for this target"
        )


def _shapes(
    config: Eagle3Config, prefix: str, target_hidden: int
) -> tuple[dict[str, Shape], dict[str, Shape]]:
    # Required and optional tensors.
    hidden = config.decoder.hidden_size
    fusion, fusion_optional = fusion_shapes(config, target_hidden)
    vocabulary, vocabulary_optional = vocabulary_shapes(config)
    required: dict[str, Shape] = {
        **fusion,
        **decoder_shapes(prefix, config.decoder, 2 * hidden),
        f"{prefix}.hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
        **vocabulary,
    }
    embedding: dict[str, Shape] = {EMBEDDING: (config.vocab_size, hidden)}
    return required, fusion_optional | vocabulary_optional | embedding


def _embedding(weights: Weights, config: Eagle3Config, target: Llama, folder: Path) -> Tensor:
    embedding = weights.take_or_share(EMBEDDING, target.embedding)
    width = embedding.shape[1]
    if width != config.decoder.hidden_size:
        raise TensorError(
            folder,
            f"lacks {EMBEDDING}, and the target's, {width} wide, does not fit a head "
            f"{config.decoder.hidden_size} wide",
            "use a head made for this target",
        )
    return embedding
