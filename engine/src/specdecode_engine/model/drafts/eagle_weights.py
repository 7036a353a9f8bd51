"""The tensors of EAGLE checkpoints: names, shapes, and what may be the target's own."""

from collections.abc import Collection
from pathlib import Path

import torch
from torch import Tensor

from specdecode_engine.model.checkpoint.checkpoint import Shapes, TensorError, TensorStore
from specdecode_engine.model.checkpoint.config_file import DraftMismatch
from specdecode_engine.model.drafts.draft_config import HeadConfig
from specdecode_engine.model.drafts.eagle_config import LAYER_IDS, Eagle1Config, Eagle3Config
from specdecode_engine.model.layers.layers import Linear
from specdecode_engine.model.layers.linears import MapKind
from specdecode_engine.model.target.language_model import LanguageModelConfig
from specdecode_engine.model.target.weights import Weights, decoder_shapes, linear_shapes

EMBEDDING = "embed_tokens.weight"
HEAD = "lm_head.weight"
ID_MAPS = frozenset({"d2t", "t2d"})
"""Tensors that relate the draft's vocabulary to the target's, no parameters."""


def eagle1_shapes(config: Eagle1Config) -> tuple[Shapes, Shapes]:
    """Name the required and the optional tensors of an EAGLE-1 head."""
    hidden, vocab = config.decoder.hidden_size, config.vocab_size
    required = linear_shapes("fc", hidden, 2 * hidden, config.bias)
    for number in range(config.num_hidden_layers):
        required |= decoder_shapes(
            f"layers.{number}", config.decoder, hidden, input_norm=number > 0
        )
    return required, {EMBEDDING: (vocab, hidden), HEAD: (vocab, hidden)}


def eagle3_shapes(config: Eagle3Config, prefix: str, target_hidden: int) -> tuple[Shapes, Shapes]:
    """Name the required and the optional tensors of an EAGLE-3 head."""
    hidden = config.decoder.hidden_size
    vocabulary, optional = _vocabulary_shapes(config)
    first, *others = layer_names(config, prefix)
    required: Shapes = {
        **decoder_shapes(first, config.decoder, 2 * hidden),
        f"{prefix}.hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
        **vocabulary,
    }
    for name in others:
        required |= decoder_shapes(name, config.decoder, hidden)
    optional[EMBEDDING] = (config.vocab_size, hidden)
    if not config.aux_spec.final:
        width, norms = config.aux_spec.width(target_hidden), fusion_norms(config)
        required |= linear_shapes("fc", hidden, width, bias=False)
        required |= {f"{name}.weight": (width // len(norms),) for name in norms}
        optional["fc.bias"] = (hidden,)
    return required, optional


def layer_prefix(names: Collection[str]) -> str:
    """Return which of two names an EAGLE-3 checkpoint has for its first layer."""
    published = any(name.startswith("midlayer.") for name in names)
    indexed = any(name.startswith("layers.0.") for name in names)
    return "layers.0" if indexed and not published else "midlayer"


def layer_names(config: Eagle3Config, prefix: str) -> tuple[str, ...]:
    """Name the layers of an EAGLE-3 head; the first is `prefix`."""
    return (prefix, *(f"layers.{number}" for number in range(1, config.num_hidden_layers)))


def fusion_norms(config: Eagle3Config) -> tuple[str, ...]:
    """Name the norms before an EAGLE-3 head's `fc`."""
    if config.norm_before_fc:
        return ("input_norm",)
    count = len(config.aux_spec.layers) if config.fc_norm else 0
    return tuple(f"fc_norm.{number}" for number in range(count))


def check_width(config: Eagle3Config, checkpoint: TensorStore, target: LanguageModelConfig) -> None:
    """Raise DraftMismatch unless `fc` reads the layers that config.json names."""
    stored = checkpoint.tensors.get("fc.weight")
    layers = list(config.aux_spec.layers)
    width = config.aux_spec.width(target.decoder.hidden_size)
    if layers and stored is not None and len(stored.shape) == 2 and stored.shape[1] != width:
        raise DraftMismatch(
            f"{stored.file}: fc.weight reads {stored.shape[1]} features, but layers {layers} of "
            f"the target give {len(layers)} x {target.decoder.hidden_size} = {width}; "
            f"correct {LAYER_IDS} in config.json, or use a head made for this target"
        )


def take_embedding(weights: Weights, config: Eagle3Config, shared: Tensor, folder: Path) -> Tensor:
    """Return the checkpoint's embedding, or the target's, `shared`."""
    embedding = weights.take_or_share(EMBEDDING, shared)
    _check_hidden_size(embedding.shape[1], EMBEDDING, config, folder)
    return embedding


def take_head(
    weights: Weights, config: Eagle3Config, embedding: Tensor, shared: Linear, folder: Path
) -> Linear:
    """Return what scores tokens: the checkpoint's, the embedding if tied, or the target's."""
    if not config.tie_word_embeddings:
        head = weights.linear_or_share("lm_head", shared)
        _check_hidden_size(head.weight.shape[1], HEAD, config, folder)
        return head
    if weights.take_or_share(HEAD, embedding) is not embedding:
        raise TensorError(
            folder,
            f"{HEAD} differs from the embedding, but config.json sets tie_word_embeddings",
            "set tie_word_embeddings to false",
        )
    return weights.linears.make(embedding, kind=MapKind.HEAD, is_kept=True)


def take_target_ids(weights: Weights, config: HeadConfig, folder: Path) -> Tensor | None:
    """Return [draft_vocab] i64, the target's id of every draft id; None where they are equal.

    A draft may know only the most frequent tokens; `d2t` then holds, per draft id, the offset to
    the target's id, and `t2d` marks the known tokens in the target's vocabulary.
    """
    drafts, vocab = config.draft_vocab_size, config.vocab_size
    device = weights.placement.device
    own = torch.arange(drafts, device=device)
    ids = own + weights.take("d2t").long() if "d2t" in weights else own
    used = torch.zeros(vocab, dtype=torch.bool, device=device)
    used[ids.clamp(0, vocab - 1)] = True
    if ids.min() < 0 or ids.max() >= vocab or used.sum() < drafts:
        raise TensorError(
            folder,
            f"d2t does not lead to {drafts} different ids below {vocab}",
            "it must hold offsets, target id minus draft id; export the head again",
        )
    if "t2d" in weights and not torch.equal(weights.take("t2d").bool(), used):
        raise TensorError(folder, "t2d marks other ids than d2t leads to", "export the head again")
    return ids if drafts < vocab or not torch.equal(ids, own) else None


def _vocabulary_shapes(config: Eagle3Config) -> tuple[Shapes, Shapes]:
    drafts, vocab = config.draft_vocab_size, config.vocab_size
    head: Shapes = {HEAD: (drafts, config.decoder.hidden_size)}
    offsets: Shapes = {"d2t": (drafts,)}
    marks: Shapes = {"t2d": (vocab,)}
    if drafts < vocab:
        return head | offsets, marks
    if config.has_own_vocabulary and not config.tie_word_embeddings:
        return head, offsets | marks
    return {}, head | offsets | marks


def _check_hidden_size(width: int, name: str, config: Eagle3Config, folder: Path) -> None:
    if width != config.decoder.hidden_size:
        raise TensorError(
            folder,
            f"lacks {name}, and the target's, {width} wide, does not fit a head "
            f"{config.decoder.hidden_size} wide",
            "use a head made for this target",
        )
