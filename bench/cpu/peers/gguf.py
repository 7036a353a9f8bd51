"""Writes GGUF files, version 3: fields, then a table of tensors, then their bytes, aligned.

The format is described at github.com/ggml-org/ggml/blob/master/docs/gguf.md. Only what a Llama
and its tokenizer need: whole numbers, floats, strings and lists of them, float32 and float16.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 32
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_TENSOR_TYPES = {np.dtype(np.float32): 0, np.dtype(np.float16): 1}

Scalar = int | float | bool | str
Field = Scalar | Sequence[int] | Sequence[str]
"""Whole numbers are written as uint32, in lists as int32."""


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """Rows first, as in numpy; the file has dimensions in reverse order."""

    name: str
    values: NDArray[np.float32] | NDArray[np.float16]


def write_gguf(path: Path, fields: Mapping[str, Field], tensors: Sequence[NamedTensor]) -> None:
    """Write a file.

    Raises:
        ValueError: a tensor is of a type, or a field of a kind, that this writer does not know.
    """
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields)))
        for name, value in fields.items():
            file.write(_string(name) + _field(value))
        offset = 0
        for tensor in tensors:
            file.write(_tensor_info(tensor, offset))
            offset += _aligned(tensor.values.nbytes)
        _pad(file)
        for tensor in tensors:
            file.write(np.ascontiguousarray(tensor.values).tobytes())
            _pad(file)


def _tensor_info(tensor: NamedTensor, offset: int) -> bytes:
    values = tensor.values
    if values.dtype not in _TENSOR_TYPES:
        raise ValueError(f"{tensor.name} is {values.dtype}; give it as float32 or float16")
    shape = struct.pack(f"<I{values.ndim}Q", values.ndim, *reversed(values.shape))
    return _string(tensor.name) + shape + struct.pack("<IQ", _TENSOR_TYPES[values.dtype], offset)


def _field(value: Field) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _UINT32, value)
    if isinstance(value, float):
        return struct.pack("<If", _FLOAT32, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    return struct.pack("<I", _ARRAY) + _array(value)


def _array(values: Sequence[int] | Sequence[str]) -> bytes:
    if all(isinstance(value, str) for value in values):
        return _list(_STRING, len(values), (_string(str(value)) for value in values))
    if all(isinstance(value, int) for value in values):
        return _list(_INT32, len(values), (struct.pack("<i", value) for value in values))
    raise ValueError(f"a list of strings or of whole numbers was wanted, not {values[:3]!r}…")


def _list(kind: int, count: int, items: Iterable[bytes]) -> bytes:
    return struct.pack("<IQ", kind, count) + b"".join(items)


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _pad(file: BinaryIO) -> None:
    file.write(bytes(_aligned(file.tell()) - file.tell()))
