"""Counts which of our record types are instantiated, by wrapping their `__new__`.

A record type is a class of ours that is a dataclass, a NamedTuple, a pydantic model or has
`__slots__`; enumerations and exceptions are not.
"""

import dataclasses
import enum
import sys
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel

PREFIX = "specdecode_"


class RecordCounter:
    """Notes the record types that are instantiated while it records."""

    def __init__(self) -> None:
        self.is_recording = False
        self.names: set[str] = set()

    def install(self) -> None:
        """Watch the record types of every module that is loaded by now."""
        for record_type in set(record_types()):
            original = record_type.__new__
            setattr(record_type, "__new__", staticmethod(self._counting(original)))  # noqa: B010

    def _counting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def new(cls: type, /, *args: Any, **named: Any) -> Any:
            if self.is_recording:
                self.names.add(f"{cls.__module__}.{cls.__qualname__}")
            return original(cls) if original is object.__new__ else original(cls, *args, **named)

        return new


def record_types() -> Iterator[type]:
    """Yield the record types of all modules of ours that are loaded, some more than once."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith(PREFIX)]
    for module in modules:
        for value in list(vars(module).values()):
            if isinstance(value, type) and value.__module__.startswith(PREFIX):
                yield from _with_nested(value)


def _with_nested(value: type) -> Iterator[type]:
    if is_record_type(value):
        yield value
    for inner in list(vars(value).values()):
        if isinstance(inner, type) and inner.__qualname__.startswith(f"{value.__qualname__}."):
            yield from _with_nested(inner)


def is_record_type(cls: type) -> bool:
    """Whether a class holds data: dataclass, NamedTuple, pydantic model, or `__slots__`."""
    if issubclass(cls, (enum.Enum, BaseException)):
        return False
    is_named_tuple = issubclass(cls, tuple) and hasattr(cls, "_fields")
    has_slots = "__slots__" in vars(cls)
    return (
        dataclasses.is_dataclass(cls) or is_named_tuple or issubclass(cls, BaseModel) or has_slots
    )
