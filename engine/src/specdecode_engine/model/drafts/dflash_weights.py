"""The tensors of DFlash checkpoints: names, shapes, and what may be the target's own.

Writers put `model.` before the names or not, and Muse's assistants name three of them otherwise.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import Tensor

from specdecode_engine.model.checkpoint.checkpoint import (
    Part,
    Shape,
    Shapes,
    StoredTensor,
    TensorStore,
)
from specdecode_engine.model.drafts.dflash_config import BlockConfig
from specdecode_engine.model.drafts.eagle_weights import EMBEDDING, HEAD
from specdecode_engine.model.target.weights import decoder_shapes

MASK_EMBEDDING = "mask_embedding"
_PREFIX = "model."
_RENAMED = {
    "encoder.fc.": "fc.",
    "encoder.output_norm_enc.": "hidden_norm.",
    ".attention_sink_bias": ".sinks",
}


def dflash_shapes(config: BlockConfig, target_hidden: int) -> tuple[Shapes, Shapes]:
    """Name the required and the optional tensors."""
    hidden, drafts = config.decoder.hidden_size, config.draft_vocab_size
    required: Shapes = {
        "fc.weight": (hidden, config.aux_spec.width(target_hidden)),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for layer in range(config.num_hidden_layers):
        required |= decoder_shapes(f"layers.{layer}", config.decoder, hidden)
    vocabulary: Shapes = {EMBEDDING: (config.vocab_size, hidden), HEAD: (drafts, hidden)}
    optional: Shapes = {MASK_EMBEDDING: (hidden,), "t2d": (config.vocab_size,)}
    if hidden != target_hidden:
        required |= vocabulary
    elif drafts < config.vocab_size:
        required[HEAD] = vocabulary[HEAD]
    ids = required if drafts < config.vocab_size else optional
    ids["d2t"] = (drafts,)
    return required, {**optional, **vocabulary}


def stored_names(names: Collection[str]) -> dict[str, str]:
    """Return the name of each stored tensor by the one that `dflash_shapes` gives it."""
    return {_plain_name(name): name for name in names}


@dataclass(frozen=True, slots=True)
class RenamedStore:
    """Tensors under the names of `dflash_shapes`."""

    source: TensorStore
    stored: Mapping[str, str]
    tensors: Mapping[str, StoredTensor]

    @classmethod
    def of(cls, source: TensorStore) -> "RenamedStore":
        stored = stored_names(source.tensors)
        return cls(source, stored, {new: source.tensors[old] for new, old in stored.items()})

    def check(self, expected: Mapping[str, Shape], optional: Mapping[str, Shape]) -> None:
        self.source.check(renamed(expected, self.stored), renamed(optional, self.stored))

    def read(self, name: str, into: Tensor, part: Part = ()) -> None:
        self.source.read(self.stored[name], into, part)

    def get(self, name: str) -> Tensor:
        return self.source.get(self.stored[name])


def renamed(shapes: Mapping[str, Shape], stored: Mapping[str, str]) -> Shapes:
    """Return shapes under the names that the checkpoint has, where it has the tensors."""
    return {stored.get(name, name): shape for name, shape in shapes.items()}


def _plain_name(name: str) -> str:
    name = name.removeprefix(_PREFIX)
    for theirs, ours in _RENAMED.items():
        name = name.replace(theirs, ours)
    return name
