"""Ranks that are threads, of which each loads a model of transformers."""

from collections.abc import Callable
from threading import Barrier, Lock
from typing import TypeVar

import pytest

from specdecode_engine.model.transformers import division, loading, model
from specdecode_engine.ranks import Ranks
from tests.engine.thread_ranks import PATIENCE_S, on_ranks

T = TypeVar("T")


def in_turns(size: int, make: Callable[..., T]) -> Callable[..., T]:
    """Let one rank after the other call `make`, while all ranks wait.

    Ranks are threads here, and transformers sets the process's default type while it makes a model.
    """
    barrier, lock = Barrier(size, timeout=PATIENCE_S), Lock()

    def call(*arguments: object) -> T:
        barrier.wait()
        with lock:
            made = make(*arguments)
        barrier.wait()
        return made

    return call


def on_loading_ranks(
    size: int, compute: Callable[[Ranks], T], monkeypatch: pytest.MonkeyPatch
) -> list[T]:
    """Compute on every rank, of which each loads a model."""
    for module, name in (
        (model, "make_network"),
        (model, "load_network"),
        (division, "make_network"),
    ):
        monkeypatch.setattr(module, name, in_turns(size, getattr(loading, name)))
    try:
        return on_ranks(size, compute)
    finally:
        monkeypatch.undo()
