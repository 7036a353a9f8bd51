"""LoRA adapters that come and go while an engine runs: how an engine is changed."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from specdecode_engine.batch.request import RequestRefused

AdapterFacts = Mapping[str, object]
"""What is known of an adapter: name, path, ranks, linear maps and the hash of its files."""


class AdapterRefused(Exception):
    """An adapter that cannot be loaded; the message has the reason and the remedy.

    Args:
        is_conflict: it could be loaded if others were not.
    """

    def __init__(self, message: str, is_conflict: bool = False) -> None:
        super().__init__(message, is_conflict)
        self.is_conflict = is_conflict

    def __str__(self) -> str:
        return str(self.args[0])


class AdapterNotLoaded(RequestRefused):
    """A request for an adapter that was unloaded after the request had come."""


class ChangeAdapters(Protocol):
    """Loads and unloads adapters of one engine."""

    def stage(self, name: str, folder: Path) -> Callable[[], AdapterFacts]:
        """Read an adapter, on any thread, one at a time; raises `AdapterRefused`.

        What is returned adds the adapter between two steps, and returns what is known of it.
        """

    def remove(self, name: str) -> bool:
        """Release an adapter between two steps, unless a request has it; whether it is gone."""
