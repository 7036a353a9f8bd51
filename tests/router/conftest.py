"""Routers in front of engine processes: real ones, and quick ones that repeat the prompt."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.router.programs import TOKEN, EngineProgram, RouterProgram


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
