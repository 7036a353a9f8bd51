"""A server whose engine has a process of its own, and how that process is stopped and killed."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from specdecode_engine.drain_socket import UNDRAIN, DrainClient
from tests.engine.serve.conftest import EXAMPLES, wait_until

BODY = {"prompt": "the quick brown fox", "temperature": 0, "ignore_eos": True}
SLICE_SECONDS = 0.005


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def ranks_of(pid: int) -> list[int]:
    """The processes of a server's engine by rank; a server with grammars has further children."""
    return [one for one in children_of(pid) if b"engine.child" in command_of(one)]


def engine_of(pid: int) -> int:
    """The process of a server's engine, which has one rank."""
    (found,) = ranks_of(pid)
    return found


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or is left for its parent to read the exit status."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


class Engine:
    """A server of the example models, started by the program's own flags."""

    def __init__(self, log: Path, port: int, more_flags: Mapping[str, object]) -> None:
        self.drain_socket = log.with_suffix(".sock")
        flags = {
            "model-path": EXAMPLES / "target", "served-model-name": "echo", "dtype": "float32",
            "speculative-algorithm": "STANDALONE", "speculative-adaptive-policy": "ema",
            "speculative-draft-model-path": EXAMPLES / "draft", "kv-cache-bytes": 64 * 2**20,
            "max-running-requests": 2, "threads": 1, "device": "cpu", "host": "127.0.0.1",
            "port": port, "management-port": 0, "engine-process": "on",
            "drain-socket": self.drain_socket, **more_flags,
        }  # fmt: skip
        given = {name: value for name, value in flags.items() if value is not None}
        words = [word for name, value in given.items() for word in _words_of(name, value)]
        self.url = f"http://127.0.0.1:{port}"
        self._log = log.open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "specdecode_engine", *words],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def log_text(self) -> str:
        return Path(self._log.name).read_text(errors="replace")

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.log_text()
        with suppress(httpx.TransportError):
            return httpx.get(self.url + "/ready", timeout=10).status_code == 200
        return False

    def text(self, **fields: Any) -> str:
        response = httpx.post(f"{self.url}/v1/completions", json=BODY | fields, timeout=120)
        assert response.status_code == 200, response.text
        return str(response.json()["choices"][0]["text"])

    def kill_engine(self) -> None:
        os.kill(engine_of(self.process.pid), signal.SIGKILL)
        wait_until(lambda: httpx.get(self.url + "/ready", timeout=10).status_code == 503)

    def running_requests(self) -> int:
        with DrainClient(self.drain_socket) as client:
            return int(client.send(UNDRAIN)["running_requests"])

    def metric(self, sample: str) -> float:
        return metric(self.url, sample)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        self._log.close()


def metric(url: str, sample: str) -> float:
    lines = httpx.get(url + "/metrics", timeout=10).text.splitlines()
    return float(next((one.split()[-1] for one in lines if one.startswith(sample + " ")), "0"))


def running_engine(folder: Path, **more_flags: object) -> Iterator[Engine]:
    """Run a server; underscores in the names of flags stand for hyphens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = {name.replace("_", "-"): value for name, value in more_flags.items()}
    running = Engine(folder / "log.txt", port, flags)
    try:
        wait_until(running.is_ready, 120)
        yield running
    finally:
        running.close()


def _words_of(flag: str, value: object) -> tuple[str, ...]:
    return (f"--{flag}",) if value is True else (f"--{flag}", str(value))


Call = tuple[str, dict[str, Any]]
"""Path and body of a request."""


def read_stream(url: str, call: Call, name: str, begun: list[str]) -> str:
    """Return the events of a stream; its name is in `begun` once it has a token."""
    text, (path, body) = "", call
    with httpx.stream("POST", url + path, json=body | {"stream": True}, timeout=120) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            text += line + "\n"
            if '"choices":' in line or '"delta":' in line:  # every response has a "text"
                begun.append(name)
    return text


def stopped_streams(
    engine: Engine, pool: ThreadPoolExecutor, calls: Mapping[str, Call]
) -> dict[str, Future[str]]:
    """Begin streams and stop the engine: it runs in slices, or one could end before all begin."""
    process, begun = engine_of(engine.process.pid), list[str]()
    streams = {
        name: pool.submit(read_stream, engine.url, call, name, begun)
        for name, call in calls.items()
    }
    ends_s = time.monotonic() + 60
    while set(begun) != set(calls):
        assert time.monotonic() < ends_s
        os.kill(process, signal.SIGCONT)
        time.sleep(SLICE_SECONDS)
        os.kill(process, signal.SIGSTOP)
        assert httpx.get(engine.url + "/live", timeout=10).status_code == 200
    return streams
