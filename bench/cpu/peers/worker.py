"""The asking side of the protocol: a worker process, one question at a time."""

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from checks.harness.machine import ROOT, worker_environment

ANSWER_TIMEOUT_S = 600.0


class PeerFailed(Exception):
    """A worker ended, was too slow or answered with an error; the message has its output."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a worker did, and the processor time that it took."""

    tokens: list[list[int]]
    figures: dict[str, float]
    cpu_s: float
    wall_s: float

    @property
    def token_count(self) -> int:
        """New tokens, all prompts together."""
        return sum(len(one) for one in self.tokens)

    @property
    def rate(self) -> float:
        """Tokens per second of processor time."""
        return self.token_count / self.cpu_s

    @property
    def decode_rate(self) -> float:
        """The same without the prompts and the first tokens, of workers that report it."""
        return self.figures["decode_tokens"] / self.figures["decode_s"]


class Worker:
    """A process that answers; use it as a context manager.

    Args:
        name: for messages.
        command: the program and its arguments.
        paths: folders for its PYTHONPATH.
    """

    def __init__(self, name: str, command: Sequence[str], paths: Sequence[str]) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by close()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=worker_environment(os.environ, paths),
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._versions: dict[str, str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def versions(self) -> dict[str, str]:
        """Wait until it has loaded; return the versions it runs.

        Raises:
            PeerFailed: it ended or took too long.
        """
        if self._versions is None:
            self._versions = self._next()["versions"]
        return self._versions

    def ask(
        self,
        way: str,
        prompts: Sequence[Sequence[int]] = (),
        tokens: Sequence[int] = (),
        depth: int = 0,
    ) -> Answer:
        """Have the prompts answered.

        Raises:
            PeerFailed: it ended, took too long or answered with an error.
        """
        self.versions()
        question = {
            "way": way,
            "prompts": [list(prompt) for prompt in prompts],
            "tokens": list(tokens),
            "depth": depth,
        }
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerFailed(f"{self.name} has ended: {self._last_words()}") from None
        return Answer(**self._next())

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")  # the end

    def _next(self) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=ANSWER_TIMEOUT_S)
        except queue.Empty:
            raise PeerFailed(
                f"{self.name} printed nothing for {ANSWER_TIMEOUT_S:g} s: {self._last_words()}"
            ) from None
        if not line:
            raise PeerFailed(f"{self.name} has ended: {self._last_words()}")
        message: dict[str, Any] = json.loads(line)
        if "error" in message:
            raise PeerFailed(f"{self.name}: {message['error']}")
        return message

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
        return lines[-1] if lines else "it left no message"


def start_worker(
    module: str, setup: Mapping[str, str], python: Path | None = None, name: str | None = None
) -> Worker:
    """Start a module of `workers`; `python` is this one where None, with what it can import."""
    own = python is None
    command = (
        str(python or sys.executable),
        "-m",
        f"bench.cpu.peers.workers.{module}",
        json.dumps(setup),
    )
    paths = [str(ROOT), *(path for path in sys.path if path and own)]
    return Worker(name or module, command, paths)
