"""Engines with a token of routers: two equal ones with a draft, and one with another model."""

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.serve.conftest import EXAMPLES, RunningServer, real_server, wait_until
from tests.engine.serve.internal.router_client import TOKEN, engine_state

OPTIONS: dict[str, Any] = {
    "context_length": 768,
    "tool_parser": "hermes",
    "reasoning_parser": "qwen3",
    "prompt_tokens_details": True,
}


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("tokens") / "token"
    file.write_text(TOKEN + "\n")
    return file


def with_resume_id(server: RunningServer) -> RunningServer:
    server.wait_ready()
    wait_until(lambda: engine_state(server)["resume_id"] is not None)
    return server


@pytest.fixture(scope="session")
def engines(token_file: Path) -> Iterator[tuple[RunningServer, RunningServer]]:
    """Two engines on the real core; one drafts, which no answer depends on."""
    options = OPTIONS | {"router_token_path": str(token_file)}
    draft = {"algorithm": "STANDALONE", "draft_path": str(EXAMPLES / "draft"), "num_steps": 3}
    running = [real_server(each, management_port=unused_port(), **options) for each in (draft, {})]
    yield with_resume_id(running[0]), with_resume_id(running[1])
    for server in running:
        server.close()


@pytest.fixture(scope="session")
def other_engine(
    token_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """An engine whose weights differ in one byte."""
    folder = tmp_path_factory.mktemp("other") / "target"
    shutil.copytree(EXAMPLES / "target", folder)
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    options = OPTIONS | {"router_token_path": str(token_file)}
    server = real_server({}, folder=folder, management_port=unused_port(), **options)
    yield with_resume_id(server)
    server.close()
