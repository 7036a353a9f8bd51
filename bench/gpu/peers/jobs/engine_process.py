"""The process of an engine: started with its own packages, and ended with all its children."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.gpu.peers.cells import Engine, Job
from bench.gpu.peers.jobs.job_process import GO
from bench.gpu.peers.parts import PINNED
from bench.gpu.peers.results.figures import Figure

MODULES = {
    Engine.OWN: "own_engine",
    Engine.TRANSFORMERS: "transformers_engine",
    Engine.VLLM: "vllm_engine",
    Engine.SGLANG: "sglang_engine",
}
ENDED_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class RunPlace:
    """Where engines run: the checkpoint, their logs, and what each imports.

    Args:
        archive: gets the log of every process that has ended.
        paths: by engine, the folders of its PYTHONPATH.
        unavailable: by engine, why it cannot start.
    """

    root: Path
    checkpoint: Path
    logs: Path
    archive: Path
    is_gpu: bool
    paths: Mapping[Engine, Sequence[str]]
    unavailable: Mapping[Engine, str]


class JobProcess:
    """The process of one job, in a group of its own; nothing is left of it after `close`."""

    def __init__(self, job: Job, place: RunPlace) -> None:
        self.job, self.timed_out = job, False
        self._failed = place.unavailable.get(job.engine, "")
        self._about: dict[str, Any] = {}
        self.log = place.logs / f"{job.name}.log"
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._process = None if self._failed else self._popen(place)
        self._reader = threading.Thread(target=self._read, daemon=True)
        if self._process is not None:
            self._reader.start()

    def figures(self, ends_s: float) -> Iterator[Figure]:
        """Let it measure; yield figures as they come, until it ends or the time is over."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(GO + "\n")
            self._process.stdin.flush()
        while line := self._next(ends_s):
            message: dict[str, Any] = json.loads(line)
            self._failed = message.get("failed", self._failed)
            self._about |= message.get("ready", {})
            if fault := fault_of_version(self.job.engine, self._about.get("version")):
                self._failed = fault
                return
            if "figure" in message:
                figure = Figure.read(message["figure"])
                yield replace(figure, facts={**self._about, **figure.facts})

    def reason(self, limit_s: float) -> str:
        """Return why cells have no figure, with the last line of the log."""
        if self._failed:
            return self._failed
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        last = next((line.strip() for line in reversed(lines) if line.strip()), "the log is empty")
        if self.timed_out:
            return f"ended after {limit_s:g} s; last log line: {last}"
        return f"its process ended; last log line: {last}"

    def close(self) -> None:
        """End it with all its children; does nothing the second time."""
        if self._process is None or self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(ENDED_WITHIN_S)
        self._reader.join(ENDED_WITHIN_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _popen(self, place: RunPlace) -> subprocess.Popen[str]:
        setup = {
            "checkpoint": str(place.checkpoint),
            "head": self.job.cells[0].head,
            "cells": [cell.document() for cell in self.job.cells],
            "is_gpu": place.is_gpu,
        }
        module = f"bench.gpu.peers.engines.{MODULES[self.job.engine]}"
        place.logs.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", module, json.dumps(setup)],
                cwd=place.root,
                env=_variables(place, self.job.engine),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _next(self, ends_s: float) -> str:
        try:
            return self._lines.get(timeout=max(ends_s - time.monotonic(), 0.0))
        except queue.Empty:
            self.timed_out = True
            return ""


def fault_of_version(engine: Engine, version: str | None) -> str:
    """Return why an engine of this version is refused; empty if it is not."""
    pinned = PINNED.get(engine)
    if pinned is None or version is None or version.split("+")[0] == pinned:
        return ""
    return f"{engine} is {version}, pinned is {pinned}; run `make bench-peers-pack`"


def _variables(place: RunPlace, engine: Engine) -> dict[str, str]:
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(place.paths.get(engine, ())),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return variables if place.is_gpu else variables | {"OMP_NUM_THREADS": "1"}
