"""Server processes: started, waited for, their processor time read, ended."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from checks.harness.machine import worker_environment

START_TIMEOUT_S = 420.0  # a busy machine reads and packs weights slowly
_POLL_S = 0.2


class ServerFailed(Exception):
    """A server ended or did not answer in time; the message has its last output."""


@dataclass(frozen=True, slots=True)
class Server:
    """One that answers."""

    name: str
    url: str
    model: str
    pid: int

    def cpu_s(self) -> float:
        """Processor time of its processes so far, all their threads."""
        return sum(map(_cpu_s, processes_of(self.pid)))

    def memory_bytes(self) -> int:
        """Memory of its processes; pages that they share count once."""
        return sum(map(_memory_bytes, processes_of(self.pid)))


def processes_of(pid: int) -> Iterator[int]:
    """Yield a process and its descendants."""
    yield pid
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield from processes_of(int(child))


def _cpu_s(pid: int) -> float:
    # The name in parentheses may hold blanks; times are the 12th and 13th field after it.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a server is started; `command` takes its port."""

    name: str
    model: str
    command: Callable[[int], Sequence[str]]
    paths: tuple[str, ...] = ()  # to import from, besides our own


def own_recipe(target: Path, dtype: str, most_running: int, engine_process: str = "off") -> Recipe:
    """Our engine without a draft."""
    document = {
        "model": {"path": str(target), "served_name": "target", "dtype": dtype},
        "memory": {"prefix_cache": False, "kv_cache_bytes": 512 * 2**20},
        "scheduling": {"max_running_requests": most_running, "chunked_prefill_tokens": 4096},
        "device": "cpu",
        "threads": 1,
        "server": {"engine_process": engine_process, "management_port": 0},
    }
    boot = target.with_name(f"boot-{engine_process}.json")
    boot.write_text(json.dumps(document))

    def command(port: int) -> Sequence[str]:
        where = ("--host", "127.0.0.1", "--port", str(port))
        return (sys.executable, "-m", "specdecode_engine", "--boot", str(boot), *where)

    return Recipe("own", "target", command)


def transformers_recipe(target: Path, dtype: str, extra: Path) -> Recipe:
    """`transformers serve` with continuous batching; `extra` has what it needs and we do not."""
    program = str(Path(sys.executable).with_name("transformers"))
    model, cache = str(target), ("--cb-block-size", "16", "--cb-num-blocks", "512")

    def command(port: int) -> Sequence[str]:
        where = ("--host", "127.0.0.1", "--port", str(port))
        how = ("--device", "cpu", "--dtype", dtype, "--continuous-batching", *cache)
        return (program, "serve", model, *how, *where)

    return Recipe("transformers serve", model, command, (str(extra),))


@contextmanager
def serving(recipe: Recipe) -> Iterator[Server]:
    """Serve within the body.

    Raises:
        ServerFailed: it did not come up.
    """
    port = _free_port()
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            recipe.command(port),
            stdout=log,
            stderr=subprocess.STDOUT,
            env=worker_environment(
                os.environ, [*(path for path in sys.path if path), *recipe.paths]
            ),
        )
        try:
            server = Server(recipe.name, f"http://127.0.0.1:{port}", recipe.model, process.pid)
            _await_answer(server, process, log.fileno())
            yield server
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _await_answer(server: Server, process: subprocess.Popen[bytes], log: int) -> None:
    """Wait until it has answered a completion: only then is everything loaded."""
    body = {"model": server.model, "prompt": "ab", "max_tokens": 2}
    ends_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < ends_s:
        if process.poll() is not None:
            output = os.pread(log, 1 << 20, 0).decode(errors="replace").strip().splitlines()
            raise ServerFailed(f"{server.name} ended: {output[-1] if output else 'without a word'}")
        try:
            answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
            if answer.is_success:
                return
            if answer.status_code < 500:
                raise ServerFailed(f"{server.name}: {answer.status_code}: {answer.text[:200]}")
        except httpx.TransportError:
            pass  # it does not listen yet
        time.sleep(_POLL_S)
    raise ServerFailed(f"{server.name} did not answer within {START_TIMEOUT_S:g} s")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
