"""Garbage collections of the engine do not visit what was loaded."""

import gc
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from specdecode_api.boot import EngineBoot
from specdecode_engine import __main__ as engine_main
from specdecode_engine import process
from specdecode_engine.process import freeze_heap
from specdecode_engine.serve import server
from specdecode_engine.serve.engine import core
from specdecode_engine.startup import build

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "models"


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def test_loaded_objects_are_not_visited_and_new_ones_are() -> None:
    loaded: list[list[int]] = [[] for _ in range(100)]
    freeze_heap()
    new: list[int] = []
    visited = {id(each) for each in gc.get_objects()}
    assert visited.isdisjoint(map(id, loaded))
    assert id(new) in visited


def test_a_body_of_many_lists_is_not_visited_over_and_over() -> None:
    visited = list[int]()

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            visited.append(len(gc.get_objects(info["generation"])))

    freeze_heap()
    gc.callbacks.append(note)
    try:
        body = json.loads("[" + ",".join(["[1]"] * 400_000) + "]")
    finally:
        gc.callbacks.remove(note)
    assert len(body) == 400_000
    assert sum(visited) < 2 * len(body)


def test_garbage_in_cycles_is_collected_a_few_thousand_objects_at_a_time() -> None:
    visited = list[int]()

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            visited.append(len(gc.get_objects(info["generation"])))

    freeze_heap()
    gc.callbacks.append(note)
    try:
        for _ in range(100_000):
            cycle = list[object]()
            cycle.append(cycle)
    finally:
        gc.callbacks.remove(note)
    assert max(visited) < 10_000
    assert sum(visited) > 90_000


def test_memory_is_returned_before_loading_and_the_heap_frozen_after_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    called = list[str]()

    def serve(*_: object, on_loaded: Callable[[], None], **given: object) -> int:
        assert called == ["return_freed_tensors"]
        on_loaded()
        return 0

    monkeypatch.setattr(server, "serve", serve)
    for name in ("return_freed_tensors", "freeze_heap"):
        monkeypatch.setattr(process, name, partial(called.append, name))
    boot = tmp_path / "boot.json"
    boot.write_text(json.dumps({"model": {"path": str(EXAMPLES / "target")}}))
    free = ["--port", "0", "--management-port", "0"]
    assert engine_main.main(["--boot", str(boot), *free]) == 0
    assert called == ["return_freed_tensors", "freeze_heap"]


def test_memory_is_kept_when_weights_are_loaded_and_before_steps_are_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called, with_costs = list[str](), build._with_measured_costs

    def timed(*arguments: Any) -> Any:
        called.append("timed")
        return with_costs(*arguments)

    monkeypatch.setattr(core, "keep_freed_memory", partial(called.append, "kept"))
    monkeypatch.setattr(build, "_with_measured_costs", timed)
    document = {"model": {"path": str(EXAMPLES / "target")}, "device": "cpu", "threads": 1}
    core.load_engine(EngineBoot.model_validate(document), lambda _: None)
    assert called == ["kept", "timed"]
