"""Reads the values of a LoRA adapter: two factors and a scale for each adapted linear map.

The base is never changed: a stored weight of the base must be the base's own.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from specdecode_engine.model.checkpoint.adapters.adapter_file import (
    TENSORS,
    AdapterBase,
    AdapterFile,
    unreadable_is_refused,
)
from specdecode_engine.model.checkpoint.adapters.config import CONFIG, AdapterConfig
from specdecode_engine.model.checkpoint.checkpoint import TensorError
from specdecode_engine.model.checkpoint.config_file import CheckpointError

COMPARED_NUMBERS = 2**20
"""Of a weight of the base, at once: both parts are converted to float32."""


class Factors(NamedTuple):
    """What an adapter adds to a linear map: scale · (x · Aᵀ) · Bᵀ, in float32."""

    a: Tensor  # [rank, inputs]
    b: Tensor  # [outputs, rank]
    scale: float

    @property
    def rank(self) -> int:
        return len(self.a)


@dataclass(frozen=True, slots=True)
class Adapter:
    """One adapter with its factors, on the host."""

    folder: Path
    config: AdapterConfig
    factors: Mapping[str, Factors]  # by the module's name; the embedding's A is [rank, vocab]
    digest: str  # of both files

    @classmethod
    def read(cls, folder: Path, base: AdapterBase) -> "Adapter":
        """Open the adapter in a folder and read its values.

        Raises:
            CheckpointError: the adapter is damaged, not supported, or of another base.
        """
        opened = AdapterFile.open(folder, base)
        digest = adapter_digest(folder)
        with unreadable_is_refused(folder):
            stored = opened.store.get_all()
            for name, module in opened.base_weights.items():
                _check_base(opened.store.folder, name, stored[name], module, base)
            factors = {module: _read_factors(opened, module, stored) for module in opened.factors}
            if adapter_digest(folder) != digest:
                fault = "was written while it was read"
                raise TensorError(folder / TENSORS, fault, "try again when it is complete")
            return cls(folder, opened.config, factors, digest)

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks that occur, in order."""
        return tuple(sorted({one.rank for one in self.factors.values()}))

    @property
    def bytes(self) -> int:
        """Bytes of all factors in float32."""
        return sum(one.a.nbytes + one.b.nbytes for one in self.factors.values())


def _read_factors(opened: AdapterFile, module: str, stored: Mapping[str, Tensor]) -> Factors:
    one, file = opened.factors[module], opened.store.folder
    a, b = (_finite(file, name, stored[name]) for name in (one.a, one.b))
    if not (b * one.scale).isfinite().all():
        raise CheckpointError(
            f"{opened.config.file.file}: lora_alpha (or alpha_pattern) scales {one.b} by "
            f"{one.scale:g}, beyond float32; correct it, or download the adapter again"
        )
    return Factors(a, b, one.scale)


def _finite(file: Path, name: str, stored: Tensor) -> Tensor:
    values = stored.float()
    faulty = ~values.isfinite()
    if faulty.any():
        place = faulty.nonzero()[0].tolist()
        fault = f"{name}{place} is {values[tuple(place)].item()}"
        raise TensorError(file, fault, "every number must be finite; train it again")
    return values


def _check_base(file: Path, name: str, stored: Tensor, module: str, base: AdapterBase) -> None:
    """Raise unless a stored weight of the base is that of this base, which peft would overwrite."""
    if base.weights is None:
        fault = f"{name} cannot be compared, as the base's weights are not here"
        raise TensorError(file, fault, "give the base as a folder with its weights")
    if not _are_equal(base.weights.get(base.weight_names[module]), stored):
        raise TensorError(
            file,
            f"{name} differs from the base in {base.folder}",
            "the adapter belongs to another base, or tokens were added to it; merge the adapter "
            "into its own base and serve the result",
        )


def _are_equal(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    rows = max(1, COMPARED_NUMBERS // max(1, one[:1].numel()))
    return all(
        torch.equal(one[start : start + rows].float(), other[start : start + rows].float())
        for start in range(0, len(one), rows)
    )


def adapter_digest(folder: Path) -> str:
    """Return the hash of both files.

    Raises:
        CheckpointError: one cannot be read.
    """
    digest = hashlib.sha256()
    with unreadable_is_refused(folder):
        for name in (CONFIG, TENSORS):
            if not (folder / name).is_file():  # a pipe would be waited for
                fault = "is missing, or not a regular file"
                raise TensorError(folder / name, fault, "download the adapter again")
            with (folder / name).open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()
