"""Exchanges the weights of a draft: all are read and verified first, then copied between steps.

The copy goes into the tensors that the running draft has, so that nothing else has to know. It
reads memory alone and cannot fail half way. It is made of pieces, with steps of the engine between
them: these draft with weights of both drafts, which no text depends on.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from itertools import chain, cycle
from pathlib import Path

import torch
from torch import Tensor

from specdecode_engine.adaptive.policy import DraftRefused
from specdecode_engine.model.checkpoint.record_tensors import named_tensors, tensor_bytes
from specdecode_engine.model.drafts.draft_config import DraftConfig
from specdecode_engine.model.layers.repeated_weights import COMPARED_BYTES

DESCRIPTIVE = frozenset({"verifier", "proposed_draft_steps"})
"""Fields of a config on which no number depends."""
DERIVED = "angles"
"""Tensors that follow from the config, which is the same."""
PIECE_BYTES = 4 << 20
"""Copied between two steps, in less time than the shortest step of a model with such a draft."""
ALIGNMENT = 16  # bytes, of a tensor in pinned memory

FLOATS = 9
"""Memory of a map of float32 and its integers of 4 bits, next to that of the integers."""

Copy = tuple[Tensor, Tensor]
"""A tensor of the running draft, and the one to copy into it."""


@dataclass(frozen=True, slots=True, eq=False)
class StagedDraft:
    """A verified draft."""

    copies: tuple[Copy, ...]

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
        shared = _storages(target)
        copies = []
        for name, into in own.items():
            source = others[name]
            if (into.shape, into.dtype) != (source.shape, source.dtype):
                shapes = f"{list(source.shape)} instead of {list(into.shape)}"
                raise _refused(folder, f"{name} is {shapes}, or of another type")
            if source.is_floating_point() and not _is_finite(source):
                raise DraftRefused(
                    f"{folder}: {name} contains NaN or infinity; the running draft stays; repair "
                    "the checkpoint"
                )
            if _storage(into) in shared:
                if _storage(source) not in shared:
                    raise _refused(folder, f"{name} differs from the target's, which is in use")
            elif not name.endswith(DERIVED):
                copies.append((into, source))
        return cls(tuple(copies))

    def pieces(self) -> Iterator[Callable[[], None]]:
        """Prepare the copy, `PIECE_BYTES` at a time; each piece is called between two steps.

        The next one is prepared on any thread, once the one before was called.
        """
        batches = _batches(self.copies)
        if any(into.is_cuda for into, _ in self.copies):
            yield from _uploads(batches)
        else:
            yield from (partial(_copy, batch) for batch in batches)


def _copy(batch: list[Copy]) -> None:
    for into, source in batch:
        into.copy_(source)


def _batches(copies: Iterable[Copy]) -> Iterator[list[Copy]]:
    """Cut tensors, and group them, into batches of `PIECE_BYTES` at most."""
    batch, num_bytes = list[Copy](), 0
    for part in chain.from_iterable(_split(*copy) for copy in copies):
        size = _aligned_bytes(part[1])
        if batch and num_bytes + size > PIECE_BYTES:
            yield batch
            batch, num_bytes = [], 0
        batch.append(part)
        num_bytes += size
    if batch:
        yield batch


def _split(into: Tensor, source: Tensor) -> Iterator[Copy]:
    if source.nbytes <= PIECE_BYTES:
        yield into, source
    elif rows := PIECE_BYTES // source[0].nbytes:
        yield from zip(torch.split(into, rows), torch.split(source, rows), strict=True)
    else:
        for one, other in zip(into, source, strict=True):
            yield from _split(one, other)


def _uploads(batches: Iterable[list[Copy]]) -> Iterator[Callable[[], None]]:
    """Copy through pinned memory to a GPU, so that the host waits for no step.

    There are two buffers: one is filled while the GPU may still read the other.
    """
    buffers = cycle([(_pinned_buffer(), torch.cuda.Event()) for _ in range(2)])  # type: ignore[no-untyped-call]
    for batch, (buffer, copied) in zip(batches, buffers, strict=False):
        copied.synchronize()
        pinned, used = list[Copy](), 0
        for into, source in batch:
            place = buffer[used : used + source.nbytes].view(source.dtype).view(source.shape)
            pinned.append((into, place.copy_(source)))
            used += _aligned_bytes(source)
        yield partial(_upload, pinned, copied)


def _pinned_buffer() -> Tensor:
    return torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True)


def _upload(batch: list[Copy], copied: "torch.cuda.Event") -> None:
    for into, pinned in batch:
        into.copy_(pinned, non_blocking=True)
    copied.record()


def _aligned_bytes(tensor: Tensor) -> int:
    return -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT


def _is_finite(tensor: Tensor) -> bool:
    """Look at the ends alone, which takes no memory and finds NaN too.

    Float8 is never NaN: it is not kept then.
    """
    if tensor.itemsize == 1:
        return True
    return not tensor.numel() or bool(torch.stack(torch.aminmax(tensor)).isfinite().all())


def staging_bytes(running: object, target: object) -> int:
    """Return the host memory that takes a draft, read next to the running one, at most.

    One map at a time is there as it is stored as well, and where it is rounded also as floats.
    """
    shared = _storages(target)
    own = [tensor for _, tensor in named_tensors(running) if _storage(tensor) not in shared]
    copies = [tensor.nbytes * (1 if tensor.is_floating_point() else FLOATS) for tensor in own]
    largest = max(copies, default=0)
    return tensor_bytes(own) + largest + 2 * COMPARED_BYTES if own else 0


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _storages(record: object) -> set[int]:
    return {_storage(tensor) for _, tensor in named_tensors(record)}


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
        f"{folder}: {difference}; the running draft stays; replace the pod to serve this draft",
        needs_restart=True,
    )
