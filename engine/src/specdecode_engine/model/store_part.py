"""Some tensors of a checkpoint; the others belong to another part of the model."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import Tensor

from specdecode_engine.model.checkpoint import Part, Shape, StoredTensor, TensorStore


@dataclass(frozen=True, slots=True)
class StorePart:
    """A view of a checkpoint without the tensors that are left to others."""

    source: TensorStore
    tensors: Mapping[str, StoredTensor]

    @classmethod
    def of(cls, source: TensorStore, names: Collection[str]) -> "StorePart":
        """Keep the tensors of these names."""
        return cls(source, {name: one for name, one in source.tensors.items() if name in names})

    @property
    def others(self) -> Mapping[str, Shape]:
        """The shapes of the tensors that are left out."""
        return {
            name: one.shape for name, one in self.source.tensors.items() if name not in self.tensors
        }

    def check(self, expected: Mapping[str, Shape], optional: Mapping[str, Shape]) -> None:
        self.source.check(expected, {**self.others, **optional})

    def read(self, name: str, into: Tensor, part: Part = ()) -> None:
        self.source.read(name, into, part)

    def get(self, name: str) -> Tensor:
        return self.source.get(name)
