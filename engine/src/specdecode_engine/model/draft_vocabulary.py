"""The tokens that an EAGLE-3 head scores: its rows of weights, and the target's id of each.

A draft may know only the most frequent tokens; `d2t` then holds, per draft id, the offset to the
target's id, and `t2d` marks in the target's vocabulary the tokens that are known.
"""

from pathlib import Path

import torch
from torch import Tensor

from specdecode_engine.model.checkpoint import Shape
from specdecode_engine.model.eagle3_config import Eagle3Config
from specdecode_engine.model.errors import TensorError
from specdecode_engine.model.layers import Linear
from specdecode_engine.model.weights import Weights

HEAD = "lm_head.weight"


def vocabulary_shapes(config: Eagle3Config) -> tuple[dict[str, Shape], dict[str, Shape]]:
    """Name the required and the optional tensors."""
    drafts, vocab = config.draft_vocab_size, config.vocab_size
    head: dict[str, Shape] = {HEAD: (drafts, config.decoder.hidden_size)}
    offsets: dict[str, Shape] = {"d2t": (drafts,)}
    marks: dict[str, Shape] = {"t2d": (vocab,)}
    if drafts < vocab:
        return head | offsets, marks
    if config.has_own_vocabulary and not config.tie_word_embeddings:
        return head, offsets | marks
    return {}, head | offsets | marks


def load_head(
    weights: Weights, config: Eagle3Config, embedding: Tensor, target_head: Linear, folder: Path
) -> Linear:
    """Hand over what scores tokens: the checkpoint's, the embedding if tied, or the target's."""
    if not config.tie_word_embeddings:
        head = weights.linear_or_share("lm_head", target_head)
    else:
        if weights.take_or_share(HEAD, embedding) is not embedding:
            raise TensorError(
                folder,
                f"{HEAD} differs from the embedding, but config.json sets tie_word_embeddings",
                "set tie_word_embeddings to false",
            )
        head = weights.linears.make(embedding)
    if head.weight.shape[1] != config.decoder.hidden_size:
        raise TensorError(
            folder,
            f"lacks {HEAD}, and the target's, {head.weight.shape[1]} wide, does not fit a head "
            f"{config.decoder.hidden_size} wide",
            "use a head made for this target",
        )
    return head


def load_target_ids(
    weights: Weights, config: Eagle3Config, device: torch.device, folder: Path
) -> Tensor | None:
    """Work out [draft_vocab] i64, the target's id of every draft id; None where they are equal."""
    drafts, vocab = config.draft_vocab_size, config.vocab_size
    own = torch.arange(drafts, device=device)
    ids = own + weights.tensors.pop("d2t", torch.zeros_like(own)).long()
    used = torch.zeros(vocab, dtype=torch.bool, device=device)
    used[ids.clamp(0, vocab - 1)] = True
    if ids.min() < 0 or ids.max() >= vocab or used.sum() < drafts:
        raise TensorError(
            folder,
            f"d2t does not lead to {drafts} different ids below {vocab}",
            "it must hold offsets, target id minus draft id; export the head again",
        )
    marks = weights.tensors.pop("t2d", None)
    if marks is not None and not torch.equal(marks.bool(), used):
        raise TensorError(folder, "t2d marks other ids than d2t leads to", "export the head again")
    return ids if drafts < vocab or not torch.equal(ids, own) else None
