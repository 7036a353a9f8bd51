"""What the server needs of the engine core, and what loading one returns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from specdecode_engine.depth.ranges import DepthTable
from specdecode_engine.metrics import CoreSnapshot
from specdecode_engine.request import Output, Request


class Core(Protocol):
    """The engine core. One thread owns it; no method may be called from another."""

    @property
    def context_length(self) -> int:
        """Tokens, prompt and answer, that one request may reach."""

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""

    def submit(self, request: Request) -> None:
        """Queue a request; raises `RequestTooLong` or `QueueFull`."""

    def abort(self, request_id: str) -> None:
        """Forget a request; an unknown id has no effect."""

    def step(self) -> list[Output]:
        """Run one step; empty when nothing came of it."""

    def has_work(self) -> bool:
        """Whether a step would do anything."""

    def reload(self, table: DepthTable) -> None:
        """Choose depths by another table; raises `TableRefused` and keeps the old one."""

    def snapshot(self) -> CoreSnapshot:
        """State and totals, as plain numbers."""


Progress = Callable[[str], None]
"""Told in a few words what loading is busy with; may be called from any thread."""


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """A core that is ready to step, and the checkpoint folder whose tokenizer it speaks.

    `facts` is shown by /server_info as it is: device, dtype, fallbacks taken, and the like.
    """

    core: Core
    model_folder: Path
    facts: Mapping[str, object] = field(default_factory=dict)


class EngineFailed(Exception):
    """The core raised; nothing that it was running will finish."""
