"""The tensors in a record of records, such as a model: their names and their memory."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass

from torch import Tensor, nn


def tensor_bytes(record: object) -> int:
    """Return the bytes of all tensors in a record of records, each storage counted once."""
    storages = [tensor.untyped_storage() for _, tensor in named_tensors(record)]
    return sum({one.data_ptr(): one.nbytes() for one in storages}.values())


def named_tensors(record: object, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in a record of records, with names such as `layer.attention.qkv.weight`."""
    if isinstance(record, Tensor):
        yield name, record
    elif isinstance(record, tuple | list):
        yield from _named_parts(name, {str(at): item for at, item in enumerate(record)})
    elif isinstance(record, dict):
        yield from _named_parts(name, {str(key): item for key, item in record.items()})
    elif isinstance(record, nn.Module):
        yield from _named_parts(name, vars(record))  # its children are among its attributes
    elif is_dataclass(record):
        parts = {one.name: getattr(record, one.name) for one in fields(record)}
        yield from _named_parts(name, parts)


def _named_parts(name: str, parts: Mapping[str, object]) -> Iterator[tuple[str, Tensor]]:
    """Leave out configs: they hold no tensors, and some of transformers refuse to be read."""
    for key, part in parts.items():
        if key != "config":
            yield from named_tensors(part, f"{name}.{key}" if name else key)
