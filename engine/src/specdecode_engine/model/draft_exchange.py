"""Exchanges the weights of a draft: all are read and verified first, then copied between two steps.

The copy goes into the tensors that the running draft has, so that nothing else has to know. It
reads memory alone and cannot fail half way.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

import torch
from torch import Tensor

from specdecode_engine.adaptive.policy import DraftRefused
from specdecode_engine.model.draft_config import DraftConfig
from specdecode_engine.model.weights import named_tensors

DESCRIPTIVE = frozenset({"verifier", "proposed_draft_steps"})
"""Fields of a config on which no number depends."""


@dataclass(frozen=True, slots=True, eq=False)
class StagedDraft:
    """A verified draft: pairs of a tensor of the running draft and the one to copy into it."""

    copies: tuple[tuple[Tensor, Tensor], ...]

    @classmethod
    def compare(cls, running: object, new: object, target: object, folder: Path) -> "StagedDraft":
        """Pair the tensors of two drafts, records of records, and verify the new ones.

        Args:
            target: the target's record; tensors that a draft shares with it are never written.

        Raises:
            DraftRefused: a tensor is missing, of another shape or not finite, or differs from the
                target's where the running draft shares it.
        """
        own, others = dict(named_tensors(running)), dict(named_tensors(new))
        if odd := sorted(own.keys() ^ others.keys()):
            raise _refused(folder, f"differs from the running draft in having {', '.join(odd[:4])}")
        shared = {tensor.untyped_storage().data_ptr() for _, tensor in named_tensors(target)}
        copies = []
        for name, into in own.items():
            source = others[name]
            if (into.shape, into.dtype) != (source.shape, source.dtype):
                shapes = f"{list(source.shape)} instead of {list(into.shape)}"
                raise _refused(folder, f"{name} is {shapes}, or of another type")
            if source.is_floating_point() and not bool(torch.isfinite(source).all()):
                raise _refused(folder, f"{name} contains NaN or infinity")
            if into.untyped_storage().data_ptr() not in shared:
                copies.append((into, source))
            elif source.untyped_storage().data_ptr() not in shared:
                raise _refused(folder, f"{name} differs from the target's, which is in use")
        return cls(tuple(copies))

    def copy(self) -> None:
        """Overwrite the running draft; called between two steps."""
        for into, source in self.copies:
            into.copy_(source)


def check_same_config(running: DraftConfig, new: DraftConfig, folder: Path) -> None:
    """Raise DraftRefused, with the fields that differ, unless both configs compute the same."""
    if found := list(_differences(running, new)):
        raise _refused(folder, f"config.json differs: {'; '.join(found)}")


def _differences(one: object, other: object, place: str = "") -> Iterator[str]:
    if is_dataclass(one) and type(one) is type(other):
        for each in fields(one):
            if each.name not in DESCRIPTIVE:
                inner = f"{place}.{each.name}" if place else each.name
                yield from _differences(getattr(one, each.name), getattr(other, each.name), inner)
    elif one != other:
        yield f"{place or 'the kind of model'} is {other!r} instead of {one!r}"


def _refused(folder: Path, difference: str) -> DraftRefused:
    return DraftRefused(
        f"{folder}: {difference}; the running draft stays; replace the pod to serve this draft"
    )
