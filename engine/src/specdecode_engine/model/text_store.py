"""The tensors of the text model in a checkpoint of a model for several kinds of input."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from specdecode_engine.model.checkpoint import Part, Shape, StoredTensor, TensorStore

TEXT = "language_model."
MODEL = "model."
OTHER_INPUTS = (
    *("vision_tower.", "vision_model.", "visual.", "audio_tower."),
    *("multi_modal_projector.", "embed_vision.", "embed_audio.", "image_newline"),
)
"""Parts for images and sounds, whose tensors are left out; any other is an error."""


@dataclass(frozen=True, slots=True)
class TextModelStore:
    """Tensors under the names that the text model has alone; those of other inputs are skipped.

    Three layouts are published: the whole text model under `language_model.`, its layers under
    `model.language_model.` with the head outside, and all under their own names (Qwen2.5-VL).
    """

    source: TensorStore
    model_prefix: str  # in place of `model.`
    head_prefix: str  # of all other tensors of the text model
    tensors: Mapping[str, StoredTensor]
    skipped: tuple[str, ...]

    @classmethod
    def of(cls, source: TensorStore) -> "TextModelStore":
        model, head = next(
            layout
            for layout in ((TEXT + MODEL, TEXT), (MODEL + TEXT, ""), (MODEL, ""))
            if layout[0] == MODEL or any(name.startswith(layout[0]) for name in source.tensors)
        )
        skipped = tuple(sorted(filter(_is_of_other_inputs, source.tensors)))
        tensors = {
            MODEL + name.removeprefix(model)
            if name.startswith(model)
            else name.removeprefix(head): stored
            for name, stored in source.tensors.items()
            if not _is_of_other_inputs(name)
        }
        return cls(source, model, head, tensors, skipped)

    def check(self, expected: Mapping[str, Shape], optional: Mapping[str, Shape]) -> None:
        skipped = {name: self.source.tensors[name].shape for name in self.skipped}
        self.source.check(self._stored(expected), {**self._stored(optional), **skipped})

    def read(self, name: str, into: Tensor, part: Part = ()) -> None:
        self.source.read(self._stored_name(name), into, part)

    def get(self, name: str) -> Tensor:
        return self.source.get(self._stored_name(name))

    def _stored(self, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
        return {self._stored_name(name): shape for name, shape in shapes.items()}

    def _stored_name(self, name: str) -> str:
        if name.startswith(MODEL):
            return self.model_prefix + name.removeprefix(MODEL)
        return self.head_prefix + name


def _is_of_other_inputs(name: str) -> bool:
    return name.removeprefix(MODEL).startswith(OTHER_INPUTS)
