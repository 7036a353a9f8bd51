"""Garbage collections of the engine do not visit what was loaded."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from specdecode_engine import __main__ as engine_main
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


def test_the_engine_freezes_its_heap_when_everything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options: dict[str, object] = {}

    def serve(*_: object, **given: object) -> int:
        options.update(given)
        return 0

    monkeypatch.setattr(server, "serve", serve)
    monkeypatch.setattr("specdecode_engine.process.keep_freed_memory", lambda: None)
    boot = tmp_path / "boot.json"
    boot.write_text('{"model": {"path": "/models/target"}}')
    assert engine_main.main(["--boot", str(boot)]) == 0
    assert options["on_loaded"] is freeze_heap
