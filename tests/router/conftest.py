"""Routers in front of engine processes: real ones, and quick ones that repeat the prompt."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.router.programs import TOKEN, EngineProgram, RouterProgram
from tests.router.recorded_engine import PlainRouter, RecordedEngine


@pytest.fixture(scope="session")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("tokens") / "token"
    file.write_text(TOKEN)
    return file


@pytest.fixture(scope="session")
def engines(token_file: Path) -> Iterator[list[EngineProgram]]:
    """Three engines on the example model, ready; a test that kills one starts it again."""
    running = [EngineProgram(token_file) for _ in range(3)]
    for engine in running:
        engine.wait_ready()
    yield running
    for engine in running:
        engine.close()


@pytest.fixture
def start_router(token_file: Path) -> Iterator[Callable[..., RouterProgram]]:
    running: list[RouterProgram] = []

    def start(engines: list[EngineProgram], *flags: str, ready: int | None = None) -> RouterProgram:
        router = RouterProgram(token_file, engines, *flags)
        running.append(router)
        return router.wait_ready(len(engines) if ready is None else ready)

    yield start
    for router in running:
        router.close()


@pytest.fixture
def two() -> Iterator[tuple[RecordedEngine, RecordedEngine]]:
    """Two servers that answer as engines of vLLM."""
    engines = RecordedEngine("one"), RecordedEngine("two")
    yield engines
    for each in engines:
        each.close()


@pytest.fixture
def start(two: tuple[RecordedEngine, RecordedEngine]) -> Iterator[Callable[..., PlainRouter]]:
    """Starts routers in front of both, with further flags."""
    running: list[PlainRouter] = []

    def start_router(*flags: str) -> PlainRouter:
        router = PlainRouter([each.address for each in two], *flags)
        running.append(router)
        router.wait_ready(2)
        return router

    yield start_router
    for each in running:
        each.close()
