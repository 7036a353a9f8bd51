"""Garbage collections of the engine do not visit what was loaded."""

import gc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from specdecode_engine import __main__ as engine_main
from specdecode_engine import process
from specdecode_engine.process import freeze_heap
from specdecode_engine.serve import server


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_loaded_objects_are_not_visited_and_new_ones_are() -> None:
    loaded: list[list[int]] = [[] for _ in range(100)]
    freeze_heap()
    new: list[int] = []
    visited = {id(each) for each in gc.get_objects()}
    assert visited.isdisjoint(map(id, loaded))
    assert id(new) in visited


def test_memory_is_kept_and_the_heap_frozen_when_everything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    called = list[str]()

    def serve(*_: object, on_loaded: Callable[[], None], **given: object) -> int:
        assert called == ["return_freed_tensors"]
        on_loaded()
        return 0

    monkeypatch.setattr(server, "serve", serve)
    for name in ("return_freed_tensors", "keep_freed_memory", "freeze_heap"):
        monkeypatch.setattr(process, name, partial(called.append, name))
    boot = tmp_path / "boot.json"
    boot.write_text('{"model": {"path": "/models/target"}}')
    assert engine_main.main(["--boot", str(boot)]) == 0
    assert called == ["return_freed_tensors", "keep_freed_memory", "freeze_heap"]
