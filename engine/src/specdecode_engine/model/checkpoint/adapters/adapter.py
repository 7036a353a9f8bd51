"""Reads a LoRA adapter for one base: two factors and a scale for each adapted linear map.

Every tensor of the file has a place or is refused by its name, and the base is never changed.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from specdecode_engine.model.checkpoint.adapters.config import CONFIG, AdapterConfig
from specdecode_engine.model.checkpoint.adapters.tensor_names import (
    FactorRole,
    TensorName,
    read_name,
)
from specdecode_engine.model.checkpoint.checkpoint import (
    Checkpoint,
    Shape,
    TensorError,
    TensorStore,
    has_tensors,
)
from specdecode_engine.model.checkpoint.config_file import CheckpointError

TENSORS = "adapter_model.safetensors"
PICKLE = "adapter_model.bin"
MAX_RANK = 512


class Factors(NamedTuple):
    """What an adapter adds to a linear map: scale · (x · Aᵀ) · Bᵀ, in float32."""

    a: Tensor  # [rank, inputs]
    b: Tensor  # [outputs, rank]
    scale: float

    @property
    def rank(self) -> int:
        return len(self.a)


@dataclass(frozen=True, slots=True)
class AdapterBase:
    """What an adapter is read for: the linear maps of a model."""

    folder: Path
    shapes: Mapping[str, Shape]  # [outputs, inputs] of each map, by the module's name
    embedding: str  # the module whose map is [vocab, hidden] and looked up by token
    weights: TensorStore | None  # of the base; None where only headers are known
    weight_names: Mapping[str, str]  # of the stored weight of each module


@dataclass(frozen=True, slots=True)
class Adapter:
    """One adapter with its factors, on the host."""

    folder: Path
    config: AdapterConfig
    factors: Mapping[str, Factors]  # by the module's name; the embedding's A is [rank, vocab]
    digest: str  # of both files

    @classmethod
    def read(cls, folder: Path, base: AdapterBase) -> "Adapter":
        """Read the adapter in a folder and check it against its base.

        Raises:
            CheckpointError: the adapter is damaged, not supported, or of another base.
        """
        config = AdapterConfig.load(folder)
        _refuse_model(folder)
        store = Checkpoint.open_file(_tensor_file(folder))
        placed = {
            name: read_name(stored.file, name, base.shapes)
            for name, stored in store.tensors.items()
        }
        modules = dict.fromkeys(
            one.module for one in placed.values() if one.role is not FactorRole.BASE
        )
        if not modules:
            raise TensorError(folder / TENSORS, "holds no factors", "save the adapter again")
        names = {(one.module, one.role): name for name, one in placed.items()}
        _refuse_doubles(folder, placed, names)
        for name, one in placed.items():
            if one.role is FactorRole.BASE:
                _check_base(store, name, one, base)
        factors = {
            module: _read_factors(store, module, names, placed, config, base) for module in modules
        }
        return cls(folder, config, factors, _digest(folder))

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks that occur, in order."""
        return tuple(sorted({one.rank for one in self.factors.values()}))

    @property
    def bytes(self) -> int:
        """Bytes of all factors in float32."""
        return sum(one.a.nbytes + one.b.nbytes for one in self.factors.values())


def _refuse_model(folder: Path) -> None:
    if has_tensors(folder):
        raise CheckpointError(
            f"{folder} contains a model (safetensors files) and a LoRA adapter ({CONFIG}); "
            "move the adapter's files to a folder of their own"
        )


def _tensor_file(folder: Path) -> Path:
    file, pickle = folder / TENSORS, folder / PICKLE
    if not file.exists() and pickle.exists():
        fault = "is a pickle, which can run code when it is opened"
        raise TensorError(pickle, fault, f"convert it to safetensors, named {TENSORS}")
    if not file.exists():
        raise TensorError(file, "no such file", "download the adapter again")
    return file


def _refuse_doubles(
    folder: Path, placed: Mapping[str, TensorName], names: Mapping[tuple[str, FactorRole], str]
) -> None:
    for name, one in placed.items():
        other = names[one.module, one.role]
        if other != name:
            fault = f"{name} and {other} are the same factor of {one.module}"
            raise TensorError(folder / TENSORS, fault, "save the adapter again")


def _read_factors(
    store: Checkpoint,
    module: str,
    names: Mapping[tuple[str, FactorRole], str],
    placed: Mapping[str, TensorName],
    config: AdapterConfig,
    base: AdapterBase,
) -> Factors:
    is_embedding = module == base.embedding
    kinds = (
        (FactorRole.EMBEDDING_A, FactorRole.EMBEDDING_B)
        if is_embedding
        else (FactorRole.A, FactorRole.B)
    )
    other_kinds = {
        FactorRole.A,
        FactorRole.B,
        FactorRole.EMBEDDING_A,
        FactorRole.EMBEDDING_B,
    } - set(kinds)
    for kind in other_kinds:
        if (module, kind) in names:
            fault = f"{names[module, kind]} is not a factor of {module}"
            raise TensorError(store.folder, fault, "the adapter belongs to another model")
    missing = [kind.value for kind in kinds if (module, kind) not in names]
    if missing:
        fault = f"{module} has one factor, but no {missing[0]}"
        raise TensorError(store.folder, fault, "the file is incomplete, download it again")
    a, b = (names[module, kind] for kind in kinds)
    path = placed[a].path
    outputs, inputs = base.shapes[module]
    sizes = (inputs, outputs) if not is_embedding else (outputs, inputs)
    rank = config.rank_of(path)
    if rank > MAX_RANK:
        fault = f"{a} has rank {rank}"
        raise TensorError(store.folder, fault, f"the highest supported rank is {MAX_RANK}")
    _check_shape(store, a, (rank, sizes[0]))
    _check_shape(store, b, (sizes[1], rank))
    return Factors(_read(store, a), _read(store, b), config.scale_of(path))


def _check_shape(store: Checkpoint, name: str, expected: Shape) -> None:
    shape = store.tensors[name].shape
    if shape != expected:
        raise TensorError(
            store.folder,
            f"{name} is {list(shape)} instead of {list(expected)}",
            f"the adapter belongs to another model, or {CONFIG} to another adapter",
        )


def _read(store: Checkpoint, name: str) -> Tensor:
    if not store.tensors[name].dtype.is_floating_point:
        raise TensorError(store.folder, f"{name} holds integers", "save the adapter in float32")
    values = store.get(name).float()
    faulty = ~values.isfinite()
    if faulty.any():
        place = faulty.nonzero()[0].tolist()
        fault = f"{name}{place} is {values[tuple(place)].item()}"
        raise TensorError(store.folder, fault, "every number must be finite; train it again")
    return values


def _check_base(store: Checkpoint, name: str, one: TensorName, base: AdapterBase) -> None:
    """Raise unless a stored weight of the base is that of this base, which peft would overwrite."""
    if base.weights is None:
        fault = f"{name} cannot be compared, as the base's weights are not here"
        raise TensorError(store.folder, fault, "give the base as a folder with its weights")
    own = base.weights.get(base.weight_names[one.module])
    stored = store.get(name)
    if own.shape != stored.shape or not torch.equal(own.float(), stored.float()):
        raise TensorError(
            store.folder,
            f"{name} differs from the base in {base.folder}",
            "the adapter belongs to another base, or tokens were added to it; merge the adapter "
            "into its own base and serve the result",
        )


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for name in (CONFIG, TENSORS):
        with (folder / name).open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()
