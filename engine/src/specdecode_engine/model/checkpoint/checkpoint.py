"""Opens a folder of safetensors files as one table of tensors, and reads them one at a time.

Nothing is skipped in silence: a tensor that is missing, left over or of the wrong shape is an
error, found from the file headers before the first byte of weights is read.
"""

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from specdecode_engine.model.checkpoint.config_file import CheckpointError, refuse_other_formats
from specdecode_kernels import Precision, QuantizedTensor

Shape = tuple[int, ...]
Shapes = dict[str, Shape]
Part = tuple[slice, ...]
"""A part of a tensor, by its first dimensions; an empty one is the whole tensor."""

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
HARMLESS = "rotary_emb.inv_freq"  # older exports store what every loader recomputes
FLOATING = (".weight", ".bias", "_proj", "_proj_bias", ".sinks")  # ends of names of parameters
NAMED = 8  # tensors that an error lists by name

DTYPES = {
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "I64": torch.int64,
    "I32": torch.int32,
    "BOOL": torch.bool,
}
QUANTIZED_DTYPES = {
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I8": torch.int8,
    "U8": torch.uint8,
}
"""What plain weights are never stored in."""


class TensorError(CheckpointError):
    """A tensor file, or tensors in it, that are missing, damaged or of the wrong shape."""

    def __init__(self, file: Path, fault: str, remedy: str) -> None:
        super().__init__(f"{file}: {fault}; {remedy}")


class SharedTensorError(TensorError):
    """A tensor differs from the loaded one that it has to repeat."""


@dataclass(frozen=True, slots=True)
class StoredQuantization:
    """Numbers with scales that a weight is stored as, in a form that kernels take."""

    precision: Precision
    read_part: Callable[[Part], QuantizedTensor | None]
    """Reads a part of them for rows of float32; columns begin and end with groups.

    None where only the values show that they do not fit.
    """
    part: Part = ()
    is_transposed: bool = False  # the plain tensor is [.., inputs, outputs]
    is_shuffled: bool = False  # groups may have any inputs, so that inputs are not divided

    def read(self) -> QuantizedTensor | None:
        """Read the part."""
        return self.read_part(self.part)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """The file of one tensor and what its header contains."""

    file: Path
    shape: Shape
    dtype: torch.dtype
    quantized: StoredQuantization | None = None

    @property
    def bytes(self) -> int:
        """Size on disk."""
        return math.prod(self.shape) * self.dtype.itemsize


class TensorStore(Protocol):
    """Where a model takes its tensors from: a `Checkpoint`, or what is made in memory."""

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """The tensors by name."""
        ...

    def check(self, expected: Mapping[str, Shape], optional: Mapping[str, Shape]) -> None:
        """Raise unless the tensors are the expected ones, and perhaps some of the optional."""
        ...

    def read(self, name: str, into: Tensor, part: Part = ()) -> None:
        """Copy a part of one tensor into memory of its shape, of any type and on any device."""
        ...

    def get(self, name: str) -> Tensor:
        """Return one tensor as it is stored, on the host; what a file holds stays mapped."""
        ...


OpenStore = Callable[[Path], TensorStore]
"""From a checkpoint's folder to its tensors."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Every tensor of one folder, or of one file, by name; only headers have been read."""

    folder: Path  # or the file
    tensors: Mapping[str, StoredTensor]

    @classmethod
    def open(cls, folder: Path) -> "Checkpoint":
        """Read the headers of the folder's single file or of all its shards."""
        return cls._of_types(folder, DTYPES)

    @classmethod
    def open_quantized(cls, folder: Path) -> "Checkpoint":
        """As `open`, with tensors of the types that quantized weights are stored in."""
        return cls._of_types(folder, DTYPES | QUANTIZED_DTYPES)

    @classmethod
    def open_file(cls, file: Path) -> "Checkpoint":
        """As `open`, of one file of any name."""
        return cls(file, _read_header(file, DTYPES))

    @classmethod
    def _of_types(cls, folder: Path, dtypes: Mapping[str, torch.dtype]) -> "Checkpoint":
        tensors: dict[str, StoredTensor] = {}
        for file in _tensor_files(folder):
            tensors.update(_read_header(file, dtypes))
        kept = {name: t for name, t in tensors.items() if not name.endswith(HARMLESS)}
        return cls(folder, kept)

    def check(self, expected: Mapping[str, Shape], optional: Mapping[str, Shape]) -> None:
        known = {**optional, **expected}
        missing = sorted(expected.keys() - self.tensors.keys())
        unused = sorted(self.tensors.keys() - known.keys())
        misshapen = [
            f"{name} is {list(stored.shape)} instead of {list(known[name])}"
            for name, stored in sorted(self.tensors.items())
            if name in known and stored.shape != known[name]
        ]
        integers = [
            name
            for name, stored in sorted(self.tensors.items())
            if name.endswith(FLOATING) and not stored.dtype.is_floating_point
        ]
        self._raise_if("lacks", missing, "the files are incomplete, download them again")
        self._raise_if("holds, unused,", unused, "this is a checkpoint of another kind of model")
        self._raise_if("does not fit config.json:", misshapen, "take both from the same checkpoint")
        self._raise_if("holds integers in", integers, "convert the weights to an unquantized type")

    def _raise_if(self, fault: str, names: list[str], remedy: str) -> None:
        if names:
            raise TensorError(self.folder, f"{fault} {list_names(names)}", remedy)

    def read(self, name: str, into: Tensor, part: Part = ()) -> None:
        # The file is mapped; what is read of it goes to `into` without a copy in between.
        into.copy_(self.get(name)[part])

    def get(self, name: str) -> Tensor:
        with safe_open(self.tensors[name].file, framework="pt") as opened:
            stored: Tensor = opened.get_tensor(name)
            return stored

    def get_all(self) -> dict[str, Tensor]:
        """As `get`, of all tensors; each file is opened once."""
        found: dict[str, Tensor] = {}
        for file in dict.fromkeys(stored.file for stored in self.tensors.values()):
            with safe_open(file, framework="pt") as opened:
                for name, stored in self.tensors.items():
                    if stored.file == file:
                        found[name] = opened.get_tensor(name)
        return found


def list_names(names: Sequence[str]) -> str:
    """Write names for an error: the first of them, and how many more there are."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"


def has_tensors(folder: Path) -> bool:
    """Whether a folder has safetensors files, or the index of some."""
    return (folder / SINGLE).exists() or (folder / INDEX).exists()


def _tensor_files(folder: Path) -> list[Path]:
    if (folder / SINGLE).exists():
        return [folder / SINGLE]
    if (folder / INDEX).exists():
        return find_shards(folder / INDEX)
    refuse_other_formats(folder)
    pickles = sorted(folder.glob("*.bin"))
    if pickles:
        raise TensorError(
            pickles[0],
            "is a pickle, which can run code when it is opened",
            f"convert it to safetensors, named {SINGLE}",
        )
    raise TensorError(
        folder / SINGLE, f"no such file, and no {INDEX} either", "download the checkpoint again"
    )


def find_shards(index: Path) -> list[Path]:
    """Return the files that an index names.

    Raises:
        TensorError: the index is unreadable, or a file is missing.
    """
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = [index.with_name(name) for name in sorted(set(weight_map.values()))]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TensorError(index, f"unreadable ({error!r})", "download it again") from error
    for file in files:
        if not file.exists():
            raise TensorError(file, f"no such file, but {index.name} names it", "download it again")
    return files


def _read_header(file: Path, dtypes: Mapping[str, torch.dtype]) -> dict[str, StoredTensor]:
    header: dict[str, StoredTensor] = {}
    try:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - no mapping
                stored = opened.get_slice(name)
                shape, dtype = tuple(stored.get_shape()), str(stored.get_dtype())
                if dtype not in dtypes:
                    raise TensorError(
                        file, f"{name} is of type {dtype}", f"convert it to {', '.join(DTYPES)}"
                    )
                header[name] = StoredTensor(file, shape, dtypes[dtype])
    except (OSError, SafetensorError) as error:
        raise TensorError(file, f"damaged or cut short ({error})", "download it again") from error
    return header


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
