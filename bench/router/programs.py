"""Engines and routers as processes of their own, to be killed."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx

from specdecode_api.internal_api import HEADER_TOKEN, PATH_ENGINE

TARGET = Path(__file__).parents[2] / "examples" / "models" / "target"
TOKEN = "token-of-routers"


def unused_ports(count: int) -> list[int]:
    """Ports of the loopback address that nothing uses now."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def wait_until(condition: Callable[[], bool], timeout_s: float = 60, what: str = "it") -> None:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError(f"{what} did not happen within {timeout_s:g} s")


class Program:
    """A program of this project in a process of its own; its log is kept."""

    def __init__(self, module: str, arguments: Sequence[str]) -> None:
        self.command = [sys.executable, "-m", module, *arguments]
        handle, name = tempfile.mkstemp(prefix="specdecode-", suffix=".log")
        os.close(handle)
        self.log = Path(name)
        self._start()

    def _start(self) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env=environment)

    @property
    def text(self) -> str:
        """The log."""
        return self.log.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill the process at once, and wait until it is gone."""
        self.process.kill()
        self.process.wait(20)

    def start_again(self) -> None:
        """Start the same program again, after it has ended."""
        self.process.wait(20)
        self._start()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()
        self.log.unlink(missing_ok=True)


class EngineProgram(Program):
    """An engine on the example model."""

    def __init__(self, token_file: Path, *flags: str, model: Path = TARGET) -> None:
        self.port, self.management_port = unused_ports(2)
        self.url = f"http://127.0.0.1:{self.port}"
        self.address = f"127.0.0.1:{self.management_port}"
        arguments = (
            "--model-path", str(model), "--served-model-name", "tiny", "--dtype", "float32",
            "--device", "cpu", "--threads", "1", "--kv-cache-bytes", str(32 << 20),
            "--host", "127.0.0.1", "--port", str(self.port),
            "--management-port", str(self.management_port),
            "--router-token-file", str(token_file), "--context-length", "1024", *flags,
        )  # fmt: skip
        super().__init__("specdecode_engine", arguments)

    def state(self) -> dict[str, object] | None:
        try:
            url = f"http://{self.address}{PATH_ENGINE}"
            response = httpx.get(url, headers={HEADER_TOKEN: TOKEN}, timeout=5)
            return dict(response.json()) if response.status_code == 200 else None
        except httpx.HTTPError:
            return None

    def is_ready(self) -> bool:
        """Whether it serves and has computed its resume id."""
        assert self.process.poll() is None, self.text
        state = self.state()
        return state is not None and state["reason"] is None and state["resume_id"] is not None

    def wait_ready(self) -> "EngineProgram":
        wait_until(self.is_ready, 120, "the engine's start")
        return self


class RouterProgram(Program):
    """A router in front of engines."""

    def __init__(
        self, token_file: Path, engines: Sequence[EngineProgram | str], *flags: str
    ) -> None:
        self.port, self.management_port = unused_ports(2)
        self.url = f"http://127.0.0.1:{self.port}"
        self.management_url = f"http://127.0.0.1:{self.management_port}"
        addresses = [each if isinstance(each, str) else each.address for each in engines]
        arguments = (
            "--engines", ",".join(addresses), "--token-file", str(token_file),
            "--host", "127.0.0.1", "--port", str(self.port),
            "--management-port", str(self.management_port), "--pre-stop", "0", *flags,
        )  # fmt: skip
        super().__init__("specdecode_router", arguments)

    def wait_ready(self, engines: int) -> "RouterProgram":
        """Wait until it has found so many ready engines."""
        wait_until(lambda: self.count_ready() == engines, 60, f"{engines} ready engines")
        return self

    def count_ready(self) -> int:
        assert self.process.poll() is None, self.text
        try:
            return int(self.metric("specdecode_router_engines", state="ready"))
        except httpx.HTTPError:
            return -1

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples with these labels."""
        text = httpx.get(f"{self.management_url}/metrics", timeout=10).text
        found = re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", text, re.MULTILINE)
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(float(value) for given, value in found if all(each in given for each in wanted))
