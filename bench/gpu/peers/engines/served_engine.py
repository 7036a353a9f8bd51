"""An engine's own server in a process of its own, and the client that measures it."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.gpu.peers.cells import Engine, Mode
from bench.gpu.peers.engines.servers import server_command, server_folder
from bench.gpu.peers.jobs.closed_loop import serve_as_they_come
from bench.gpu.peers.jobs.http_client import complete
from bench.gpu.peers.jobs.job_process import Setup, run_job
from bench.gpu.peers.jobs.measuring import FIRST_TOKENS_S, Prompts
from bench.gpu.peers.loads import ScheduledRequest

READY_WITHIN_S = 300.0
POLL_S = 0.1


class ServedEngine:
    """A server that answers streams, each over a connection of its own."""

    def __init__(self, port: int, model: str) -> None:
        self._port, self._model = port, model
        self._first_tokens_s: list[float] = []

    def use(self, mode: Mode) -> None:
        """Keep the mode that it was started with."""

    def generate(self, prompts: Prompts, tokens: int) -> list[list[int]]:
        """Answer all at once."""
        return self.serve([ScheduledRequest((*one,), tokens, len(prompts), 0) for one in prompts])

    def serve(self, requests: Sequence[ScheduledRequest]) -> list[list[int]]:
        """Answer requests as they come."""
        return asyncio.run(serve_as_they_come(requests, self._answer))

    def facts(self) -> dict[str, Any]:
        """Return the times to first token since the last call."""
        found, self._first_tokens_s = self._first_tokens_s, []
        return {FIRST_TOKENS_S: found}

    async def _answer(self, request: ScheduledRequest) -> list[int]:
        tokens, first_s = await complete(self._port, self._model, request)
        if first_s is not None:
            self._first_tokens_s.append(first_s)
        return tokens


def start(setup: Setup) -> tuple[ServedEngine, dict[str, Any]]:
    """Start the server that the cells need, and wait until it lists its model.

    Raises:
        RuntimeError: it ended, or is not ready in time.
    """
    engine = Engine(setup.cells[0]["engine"])
    with server_folder() as folder:
        port = _free_port()
        process = subprocess.Popen(
            [setup.python, *server_command(engine, setup, port, folder)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(setup.paths)},
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
        )
        model = _await_model(port, process)
    return ServedEngine(port, model), _versions(setup, engine)


def _await_model(port: int, process: "subprocess.Popen[bytes]") -> str:
    ends_s = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < ends_s:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended; its last log line: {_last_line()}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5) as answer:
                return str(json.load(answer)["data"][0]["id"])
        except (urllib.error.URLError, OSError, ValueError, KeyError, IndexError):
            time.sleep(POLL_S)
    raise RuntimeError(f"the server was not ready within {READY_WITHIN_S:g} s")


def _last_line() -> str:
    """Return the last line of this process's log, which the server writes too."""
    lines = Path("/proc/self/fd/2").read_text(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "the log is empty")


def _versions(setup: Setup, engine: Engine) -> dict[str, Any]:
    """Ask the server's Python for the versions of engine and torch."""
    module = {Engine.OWN: "specdecode-engine", Engine.VLLM: "vllm"}.get(engine, engine)
    code = (
        "import sys; from importlib.metadata import version\n"
        "print(*(version(name) for name in sys.argv[1:]))"
    )
    done = subprocess.run(
        [setup.python, "-c", code, module, "torch"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(setup.paths)},
        capture_output=True,
        text=True,
    )
    words = done.stdout.split()
    return dict(zip(("version", "torch"), words, strict=False)) if words else {}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


if __name__ == "__main__":
    run_job(start)
