"""Opens torch's pickled weights as one table of tensors, and reads them one at a time.

Pickles are read as weights only, so that no code of a checkpoint runs. Files are mapped. What was
read of a mapping counts as memory until it is closed, so a file is mapped again from time to time:
loading takes the memory of the model and of `MAPPED_BYTES`. A file in the format before torch 1.6,
which is not a zip archive, cannot be mapped and is in memory as a whole while its tensors are read.
"""

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from specdecode_engine.model.checkpoint.checkpoint import (
    HARMLESS,
    Checkpoint,
    Part,
    Shape,
    StoredTensor,
    TensorError,
    TensorStore,
    find_shards,
    has_tensors,
)

PICKLE = "pytorch_model.bin"
PICKLE_INDEX = "pytorch_model.bin.index.json"
MAPPED_BYTES = 16 << 20  # that are read before a file is mapped again


def has_pickles(folder: Path) -> bool:
    """Whether a folder has pickled weights, or the index of some."""
    return (folder / PICKLE).exists() or (folder / PICKLE_INDEX).exists()


def open_unquantized(folder: Path) -> TensorStore:
    """Open safetensors if there are any, else pickles; tensors of quantized types are refused."""
    if not has_tensors(folder) and has_pickles(folder):
        return PickleStore(folder)
    return Checkpoint.open(folder)


class PickleStore:
    """Every tensor of one folder, by name; one file is open at a time."""

    def __init__(self, folder: Path) -> None:
        """Read which tensors there are.

        Raises:
            TensorError: a file is damaged, or holds anything but tensors.
        """
        self._folder = folder
        self._open: tuple[Path, Mapping[str, Tensor]] | None = None
        self._read_bytes = 0
        single, index = folder / PICKLE, folder / PICKLE_INDEX
        self.tensors: Mapping[str, StoredTensor] = {
            name: StoredTensor(file, tuple(tensor.shape), tensor.dtype)
            for file in ([single] if single.exists() else find_shards(index))
            for name, tensor in _load(file).items()
            if not name.endswith(HARMLESS)
        }

    def check(self, expected: Mapping[str, Shape], optional: Mapping[str, Shape]) -> None:
        Checkpoint(self._folder, self.tensors).check(expected, optional)

    def read(self, name: str, into: Tensor, part: Part = ()) -> None:
        into.copy_(self.get(name)[part])

    def get(self, name: str) -> Tensor:
        stored = self.tensors[name]
        tensor = self._tensors_of(stored.file)[name]
        self._read_bytes += stored.bytes
        if self._read_bytes >= MAPPED_BYTES and zipfile.is_zipfile(stored.file):
            self._open = None
        return tensor

    def _tensors_of(self, file: Path) -> Mapping[str, Tensor]:
        if self._open is None or self._open[0] != file:
            self._open = None  # before the next file is opened
            self._open, self._read_bytes = (file, _load(file)), 0
        return self._open[1]


def _load(file: Path) -> dict[str, Tensor]:
    remedy = "download it again, or convert it to safetensors where it was written"
    try:
        loaded = torch.load(
            file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file)
        )
    except pickle.UnpicklingError as error:
        fault = "holds more than weights, and is read as weights only"
        raise TensorError(file, f"{fault} ({_first_line(error)})", remedy) from error
    except (OSError, RuntimeError, EOFError, ValueError) as error:
        raise TensorError(file, f"damaged or cut short ({_first_line(error)})", remedy) from error
    if not isinstance(loaded, dict):
        raise TensorError(file, f"holds a {type(loaded).__name__}, not tensors by name", remedy)
    for name, tensor in loaded.items():
        if not isinstance(tensor, Tensor):
            raise TensorError(file, f"{name} is a {type(tensor).__name__}, not a tensor", remedy)
    return loaded


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
