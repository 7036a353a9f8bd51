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

from bench.gpu.peers.cells import Engine, Job, Load
from bench.gpu.peers.jobs.job_process import GO
from bench.gpu.peers.results.figures import Figure

MODULES = {
    Engine.OWN: "own_engine",
    Engine.TRANSFORMERS: "transformers_engine",
    Engine.VLLM: "vllm_engine",
    Engine.SGLANG: "sglang_engine",
}
HTTP_MODULE = "served_engine"
ENDED_WITHIN_S = 10.0
ON_A_CPU = {
    "OMP_NUM_THREADS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
}
"""One thread, and one process that computes."""


@dataclass(frozen=True, slots=True)
class RunPlace:
    """Where engines run: the checkpoint, their logs, and what each imports.

    Args:
        archive: gets the log of every process that has ended.
        paths: by engine, the folders of its PYTHONPATH.
        unavailable: by engine, why it cannot start.
        pinned: by engine, the version that it has.
        pythons: by engine, the program that runs it, where that is not ours.
    """

    root: Path
    checkpoint: Path
    logs: Path
    archive: Path
    is_gpu: bool
    paths: Mapping[Engine, Sequence[str]]
    unavailable: Mapping[Engine, str]
    pinned: Mapping[str, str]
    pythons: Mapping[Engine, str]

    def checkpoint_of(self, model: str) -> Path:
        """Return the folder of a cell's model."""
        name = model.partition("-")[0]
        return self.checkpoint.with_name(name) if name else self.checkpoint


class JobProcess:
    """The process of one job, in a group of its own; nothing is left of it after `close`."""

    def __init__(self, job: Job, place: RunPlace) -> None:
        self.job, self.timed_out = job, False
        self._pinned = place.pinned.get(job.engine)
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
            if fault := fault_of_version(self.job.engine, self._about.get("version"), self._pinned):
                self._failed = fault
                return
            if "figure" in message:
                figure = Figure.read(message["figure"])
                load = {"load_1m": round(os.getloadavg()[0], 2)}
                yield replace(figure, facts={**self._about, **load, **figure.facts})

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
        engine, first = self.job.engine, self.job.cells[0]
        python = place.pythons.get(engine, sys.executable)
        setup = {
            "checkpoint": str(place.checkpoint_of(first.model)),
            "head": first.head,
            "cells": [cell.document() for cell in self.job.cells],
            "is_gpu": place.is_gpu,
            "python": python,
            "paths": [*place.paths.get(engine, ())],
        }
        is_served = first.load is Load.HTTP
        module = f"bench.gpu.peers.engines.{HTTP_MODULE if is_served else MODULES[engine]}"
        place.logs.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            return subprocess.Popen(
                [sys.executable if is_served else python, "-m", module, json.dumps(setup)],
                cwd=place.root,
                env=_variables(place, Engine.OWN if is_served else engine),
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


def fault_of_version(engine: Engine, version: str | None, pinned: str | None) -> str:
    """Return why an engine of this version is refused; empty if it is not."""
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
    return variables if place.is_gpu else variables | ON_A_CPU
