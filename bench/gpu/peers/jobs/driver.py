"""Runs the jobs of engines one after another, each alone with the device and within its limit."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.gpu.peers.cells import Cell, Engine, Job
from bench.gpu.peers.jobs.job_process import GO
from bench.gpu.peers.results.figures import Figure, FiguresFile

MODULES = {
    Engine.OWN: "own_engine",
    Engine.TRANSFORMERS: "transformers_engine",
    Engine.VLLM: "vllm_engine",
    Engine.SGLANG: "sglang_engine",
}
MIN_JOB_S = 30.0
"""Left over at the end: no engine starts and measures a cell within less."""
ENDED_WITHIN_S = 10.0
FREE_WITHIN_S = 8.0
FREE_MIB = 1500


@dataclass(frozen=True, slots=True)
class RunPlace:
    """Where engines run: the checkpoint, their logs, and what each imports.

    Args:
        paths: by engine, the folders of its PYTHONPATH.
        unavailable: by engine, why it cannot start.
    """

    root: Path
    checkpoint: Path
    logs: Path
    is_gpu: bool
    paths: Mapping[Engine, Sequence[str]]
    unavailable: Mapping[Engine, str]


def run_jobs(
    jobs: Sequence[Job], place: RunPlace, figures: FiguresFile, ends_s: float
) -> Iterator[str]:
    """Run what has no figure yet until `ends_s`; yield a line of text per figure and job.

    On a GPU, the next engine imports while one measures. A job that the end of the run cuts off
    leaves cells without a figure, for a later run.
    """
    waiting = [left for job in jobs if (left := _left(job, figures)).cells]
    processes = dict[int, JobProcess]()
    try:
        for number, job in enumerate(waiting):
            if (left_s := ends_s - time.monotonic()) < MIN_JOB_S:
                yield f"no time for {', '.join(one.name for one in waiting[number:])}"
                return
            process = processes.pop(number, None) or JobProcess(job, place)
            if place.is_gpu and number + 1 < len(waiting):
                processes[number + 1] = JobProcess(waiting[number + 1], place)
            limit_s = min(job.limit_s, left_s)
            is_last = limit_s == left_s
            yield from _run(process, place, figures, limit_s, is_last)
    finally:
        for process in processes.values():
            process.close()


def _left(job: Job, figures: FiguresFile) -> Job:
    cells = tuple(cell for cell in job.cells if not figures.is_measured(cell))
    return Job(job.engine, cells, job.limit_s)


def _run(
    process: "JobProcess", place: RunPlace, figures: FiguresFile, limit_s: float, is_last: bool
) -> Iterator[str]:
    """Give a process the device; cells without a figure afterwards are not run.

    Args:
        is_last: the limit is the end of the run, so cells that it cuts off get no figure.
    """
    job, began_s = process.job, time.monotonic()
    if place.is_gpu:
        _wait_for_memory()
    found = set[Cell]()
    with contextlib.closing(process):
        for figure in process.figures(began_s + limit_s):
            figures.add(figure)
            found.add(figure.cell)
            yield text_of(figure)
    if not (process.timed_out and is_last):
        for cell in job.cells:
            if cell not in found:
                figures.add(Figure.not_run(cell, process.reason(limit_s)))
                yield text_of(figures.figures[cell])
    yield f"{job.name}: {time.monotonic() - began_s:.1f} s"


def text_of(figure: Figure) -> str:
    """Return a figure as a line of text."""
    if figure.median is None:
        return f"{figure.cell}: not run: {figure.reason}"
    spread = f"{figure.min:g} to {figure.max:g}"
    wrong = f", {figure.wrong} tokens wrong" if figure.wrong else ""
    return f"{figure.cell}: {figure.median:g} tokens/s ({spread}){wrong}"


class JobProcess:
    """The process of one job, in a group of its own; nothing is left of it after `close`."""

    def __init__(self, job: Job, place: RunPlace) -> None:
        self.job, self.timed_out = job, False
        self._failed = place.unavailable.get(job.engine, "")
        self._log = place.logs / f"{job.name}.log"
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
            if "figure" in message:
                yield Figure.read(message["figure"])

    def reason(self, limit_s: float) -> str:
        """Return why cells have no figure, with the last line of the log."""
        if self._failed:
            return self._failed
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        last = next((line.strip() for line in reversed(lines) if line.strip()), "the log is empty")
        if self.timed_out:
            return f"ended after {limit_s:g} s; last log line: {last}"
        return f"its process ended; last log line: {last}"

    def close(self) -> None:
        """End it with all its children."""
        if self._process is None:
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
        with self._log.open("wb") as log:
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


def _wait_for_memory(now: Callable[[], float] = time.monotonic) -> None:
    """Wait until the device has its memory back from the process before."""
    ends_s = now() + FREE_WITHIN_S
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    while now() < ends_s:
        try:
            used = subprocess.run(query, capture_output=True, text=True, timeout=FREE_WITHIN_S)
            if int(used.stdout.split()[0]) < FREE_MIB:
                return
        except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
            return
        time.sleep(0.2)
