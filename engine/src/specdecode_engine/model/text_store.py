"""The tensors of the text model in a checkpoint of a model for several kinds of input."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from specdecode_engine.model.checkpoint import Shape, StoredTensor, TensorStore

TEXT = "language_model."
MODEL = "model."
OTHER_INPUTS = ("vision_tower.", "multi_modal_projector.")
"""Parts for images, whose tensors are left out."""


@dataclass(frozen=True, slots=True)
class TextModelStore:
    """Tensors under the names that the text model has alone; those of images are skipped.

    Two layouts are published: the whole text model under `language_model.`, and its layers under
    `model.language_model.` with the head outside.
    """

    source: TensorStore
    is_whole: bool  # the first layout
    tensors: Mapping[str, StoredTensor]
    skipped: tuple[str, ...]

    @classmethod
    def of(cls, source: TensorStore) -> "TextModelStore":
        is_whole = any(name.startswith(TEXT) for name in source.tensors)
        skipped = tuple(sorted(filter(_is_of_other_inputs, source.tensors)))
        tensors = {
            _short_name(name, is_whole): stored
            for name, stored in source.tensors.items()
            if not _is_of_other_inputs(name)
        }
        return cls(source, is_whole, tensors, skipped)

    def check(self, expected: Mapping[str, Shape], optional: Mapping[str, Shape]) -> None:
        skipped = {name: self.source.tensors[name].shape for name in self.skipped}
        self.source.check(self._stored(expected), {**self._stored(optional), **skipped})

    def read(self, name: str, into: Tensor) -> None:
        self.source.read(self._stored_name(name), into)

    def _stored(self, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
        return {self._stored_name(name): shape for name, shape in shapes.items()}

    def _stored_name(self, name: str) -> str:
        if self.is_whole:
            return TEXT + name
        return MODEL + TEXT + name.removeprefix(MODEL) if name.startswith(MODEL) else name


def _short_name(name: str, is_whole: bool) -> str:
    """Return the name of a stored tensor in the text model."""
    if is_whole:
        return name.removeprefix(TEXT)
    return MODEL + name.removeprefix(MODEL + TEXT) if name.startswith(MODEL + TEXT) else name


def _is_of_other_inputs(name: str) -> bool:
    return name.removeprefix(MODEL).startswith(OTHER_INPUTS)
