"""Opens a LoRA adapter for one base: which factors it has, and whether their shapes fit.

Every tensor of the file has a place or is refused by its name. No values are read.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

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
from specdecode_engine.model.checkpoint.config_file import CheckpointError, cut

TENSORS = "adapter_model.safetensors"
PICKLE = "adapter_model.bin"
MAX_RANK = 512


@dataclass(frozen=True, slots=True)
class AdapterBase:
    """What an adapter is read for: the linear maps of a model."""

    folder: Path
    shapes: Mapping[str, Shape]  # [outputs, inputs] of each map, by the module's name
    embedding: str  # the module whose map is [vocab, hidden] and looked up by token
    weights: TensorStore | None  # of the base; None where only headers are known
    weight_names: Mapping[str, str]  # of the stored weight of each module


class StoredFactors(NamedTuple):
    """The factors of a module: names of their tensors, and numbers of the config."""

    a: str
    b: str
    rank: int
    scale: float


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """An adapter whose config and headers are read and fit a base."""

    folder: Path
    config: AdapterConfig
    store: Checkpoint
    factors: Mapping[str, StoredFactors]  # by the module's name
    base_weights: Mapping[str, str]  # modules, by the names of stored weights of the base

    @classmethod
    def open(cls, folder: Path, base: AdapterBase) -> "AdapterFile":
        """Read config and headers in a folder and check them against the base.

        Raises:
            CheckpointError: the adapter is damaged, not supported, or of another base.
        """
        with unreadable_is_refused(folder):
            config = AdapterConfig.load(folder)
            _refuse_model(folder)
            store = Checkpoint.open_file(_tensor_file(folder))
            placed = {
                name: read_name(stored.file, name, base.shapes)
                for name, stored in store.tensors.items()
            }
            is_base = {name: one.role is FactorRole.BASE for name, one in placed.items()}
            modules = dict.fromkeys(one.module for name, one in placed.items() if not is_base[name])
            if not modules:
                raise TensorError(folder / TENSORS, "holds no factors", "save the adapter again")
            names = {(one.module, one.role): name for name, one in placed.items()}
            _refuse_doubles(folder, placed, names)
            factors = {
                module: _find_factors(store, module, names, placed, config, base)
                for module in modules
            }
            base_weights = {name: placed[name].module for name, found in is_base.items() if found}
            return cls(folder, config, store, factors, base_weights)

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks that occur, in order."""
        return tuple(sorted({one.rank for one in self.factors.values()}))

    def check_rank(self, most: int | None) -> None:
        """Raise if a rank is higher than an engine accepts."""
        if most is not None and self.ranks[-1] > most:
            raise CheckpointError(
                f"{self.folder}: an adapter of rank {self.ranks[-1]}, and adapters.max_rank is "
                f"{most}; raise it (--max-lora-rank)"
            )


@contextmanager
def unreadable_is_refused(folder: Path) -> Iterator[None]:
    """Turn errors of the file system, and of files that no other check refuses, into one."""
    try:
        yield
    except (OSError, ValueError, RecursionError, OverflowError) as error:
        raise CheckpointError(
            f"{cut(str(folder))}: unreadable ({cut(str(error))}); give the folder of an adapter, "
            "or download it again"
        ) from error


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
    if not file.is_file():
        raise TensorError(file, "is not a regular file", "download the adapter again")
    return file


def _refuse_doubles(
    folder: Path, placed: Mapping[str, TensorName], names: Mapping[tuple[str, FactorRole], str]
) -> None:
    for name, one in placed.items():
        other = names[one.module, one.role]
        if other != name:
            fault = f"{name} and {other} are the same factor of {one.module}"
            raise TensorError(folder / TENSORS, fault, "save the adapter again")


def _find_factors(
    store: Checkpoint,
    module: str,
    names: Mapping[tuple[str, FactorRole], str],
    placed: Mapping[str, TensorName],
    config: AdapterConfig,
    base: AdapterBase,
) -> StoredFactors:
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
        fault = f"{a} has rank {cut(str(rank))}"
        raise TensorError(store.folder, fault, f"the highest supported rank is {MAX_RANK}")
    _check_shape(store, a, (rank, sizes[0]))
    _check_shape(store, b, (sizes[1], rank))
    return StoredFactors(a, b, rank, config.scale_of(path, rank))


def _check_shape(store: Checkpoint, name: str, expected: Shape) -> None:
    stored = store.tensors[name]
    if not stored.dtype.is_floating_point:
        raise TensorError(store.folder, f"{name} holds integers", "save the adapter in float32")
    shape = stored.shape
    if shape != expected:
        raise TensorError(
            store.folder,
            f"{name} is {list(shape)} instead of {list(expected)}",
            f"the adapter belongs to another model, or {CONFIG} to another adapter",
        )
