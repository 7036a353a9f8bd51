"""The EAGLE-3 head: drafts from three of the target's layers and its own last output.

A row pairs the hidden state at position i with the token at i + 1, has rotary position i and
predicts the token at i + 2. The first row after known text gets `fuse(features)`; a row behind a
drafted token gets the `recurrent` output of the row before it, which is never fused again.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from specdecode_engine.forward.checkpoint import Checkpoint, Placement, Shape
from specdecode_engine.forward.eagle3_config import LAYER_IDS, Eagle3Config
from specdecode_engine.forward.eagle_head import Capture, DraftHidden
from specdecode_engine.forward.errors import TensorError
from specdecode_engine.forward.kv_view import KvView
from specdecode_engine.forward.layers import DecoderLayer, Linear, Norm
from specdecode_engine.forward.llama import Llama, widened
from specdecode_engine.forward.rope import Angles, build_angles
from specdecode_engine.forward.weights import Weights, decoder_shapes

EMBEDDING = "embed_tokens.weight"


@dataclass(frozen=True, slots=True, eq=False)
class Eagle3Head:
    """The head with its weights; its cache has one layer and is the caller's."""

    config: Eagle3Config
    embedding: Tensor  # [vocab, hidden], the target's own unless the checkpoint has one
    features: Linear  # [hidden, captured layers * target hidden]
    hidden_norm: Norm
    layer: DecoderLayer  # its attention reads token and hidden state side by side
    norm: Norm
    head: Linear  # [draft_vocab, hidden]
    draft_to_target: Tensor  # [draft_vocab] i64: the target's id of every draft id
    angles: Angles

    @classmethod
    def load(
        cls,
        folder: Path,
        target: Llama,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device,
        context_length: int | None = None,
        progress: bool = False,
    ) -> "Eagle3Head":
        """Load a head in the target's type and for the target's length unless told otherwise.

        Rotary frequencies are the head's own, it was trained with them; only how many positions
        are tabulated follows the target, whatever the head's max_position_embeddings says.
        """
        config = Eagle3Config.load(folder, target.config)
        checkpoint = Checkpoint.open(folder)
        prefix = _layer_prefix(checkpoint)
        _check_features(config, checkpoint, target)
        checkpoint.check(*_shapes(config, prefix, target.config.hidden_size))
        placement = Placement(dtype or target.dtype, device)
        length = context_length or target.context_length
        angles = build_angles(config.rope, config.head_dim, length, placement.dtype, device)
        tensors = checkpoint.read(placement, label=f"loading {folder.name}", progress=progress)
        weights = Weights(tensors)
        return cls(
            config=config,
            embedding=_embedding(tensors, config, target, folder),
            features=weights.linear("fc"),
            hidden_norm=weights.norm(f"{prefix}.hidden_norm", config.decoder),
            layer=weights.decoder_layer(prefix, config.decoder),
            norm=weights.norm("norm", config.decoder),
            head=weights.linear("lm_head"),
            draft_to_target=_draft_to_target(tensors, config, device, folder),
            angles=angles,
        )

    @property
    def capture(self) -> Capture:
        """What the head reads of the target."""
        return Capture(layers=self.config.capture)

    def fuse(self, features: Tensor) -> Tensor:
        """Map captured features [rows, layers * target hidden] to hidden states [rows, hidden]."""
        return self.features(features.to(self.features.weight.dtype))

    def forward(self, ids: Tensor, hidden: Tensor, positions: Tensor, kv: KvView) -> DraftHidden:
        """Run rows: ids [rows] i64 of the target's vocabulary, hidden [rows, hidden]."""
        token = functional.embedding(ids, self.embedding).to(hidden.dtype)
        pair = torch.cat((self.layer.input_norm(token), self.hidden_norm(hidden)), dim=-1)
        x = hidden + self.layer.attention(pair, self.angles.at(positions), 0, kv)
        recurrent = x + self.layer.mlp(self.layer.mlp_norm(x))
        return DraftHidden(self.norm(recurrent), recurrent)

    def logits(self, normed: Tensor) -> Tensor:
        """Score the draft's vocabulary: [rows, draft_vocab] f32, or f64 for such a head."""
        return widened(self.head(normed))

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """Translate ids of the draft's vocabulary, of any shape, to the target's."""
        return self.draft_to_target[draft_ids]


def _layer_prefix(checkpoint: Checkpoint) -> str:
    # Published heads call their only layer by one of two names.
    published = any(name.startswith("midlayer.") for name in checkpoint.tensors)
    indexed = any(name.startswith("layers.0.") for name in checkpoint.tensors)
    return "layers.0" if indexed and not published else "midlayer"


def _check_features(config: Eagle3Config, checkpoint: Checkpoint, target: Llama) -> None:
    stored = checkpoint.tensors.get("fc.weight")
    width = len(config.capture) * target.config.hidden_size
    if stored is not None and len(stored.shape) == 2 and stored.shape[1] != width:
        raise TensorError(
            stored.file,
            f"fc.weight reads {stored.shape[1]} features, but layers {list(config.capture)} of "
            f"the target give {len(config.capture)} x {target.config.hidden_size} = {width}",
            f"correct {LAYER_IDS} in config.json, or use a head made for this target",
        )


def _shapes(
    config: Eagle3Config, prefix: str, target_hidden: int
) -> tuple[dict[str, Shape], dict[str, Shape]]:
    # Required and optional tensors.
    hidden, drafts, vocab = config.hidden_size, config.draft_vocab_size, config.vocab_size
    required: dict[str, Shape] = {
        "fc.weight": (hidden, len(config.capture) * target_hidden),
        **decoder_shapes(prefix, config.decoder, 2 * hidden),
        f"{prefix}.hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
        "lm_head.weight": (drafts, hidden),
    }
    offsets: dict[str, Shape] = {"d2t": (drafts,)}
    optional: dict[str, Shape] = {"t2d": (vocab,), "fc.bias": (hidden,), EMBEDDING: (vocab, hidden)}
    return (required, optional | offsets) if drafts == vocab else (required | offsets, optional)


def _embedding(
    tensors: dict[str, Tensor], config: Eagle3Config, target: Llama, folder: Path
) -> Tensor:
    if EMBEDDING in tensors:
        return tensors.pop(EMBEDDING)
    if config.hidden_size != target.config.hidden_size:
        raise TensorError(
            folder,
            f"lacks {EMBEDDING}, and the target's, {target.config.hidden_size} wide, does not "
            f"fit a head {config.hidden_size} wide",
            "use a head made for this target",
        )
    return target.embedding


def _draft_to_target(
    tensors: dict[str, Tensor], config: Eagle3Config, device: torch.device, folder: Path
) -> Tensor:
    drafts, vocab = config.draft_vocab_size, config.vocab_size
    own = torch.arange(drafts, device=device)
    ids = own + tensors["d2t"].long() if "d2t" in tensors else own
    used = torch.zeros(vocab, dtype=torch.bool, device=device)
    used[ids.clamp(0, vocab - 1)] = True
    if ids.min() < 0 or ids.max() >= vocab or used.sum() < drafts:
        raise TensorError(
            folder,
            f"d2t does not lead to {drafts} different ids below {vocab}",
            "it must hold offsets, target id minus draft id; export the head again",
        )
    if "t2d" in tensors and not torch.equal(tensors["t2d"].bool(), used):
        raise TensorError(folder, "t2d marks other ids than d2t leads to", "export the head again")
    return ids
