"""The side of an engine's process: loads, waits for its turn, measures, prints a line for each.

Imports only the standard library and this folder, as a peer runs with its own packages. What
libraries print goes to standard error, so that the lines are alone on standard output.
"""

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.gpu.peers.answers import read_answers
from bench.gpu.peers.cells import Cell, Load
from bench.gpu.peers.jobs.measuring import CellRunner, ServingEngine, clock_of
from bench.gpu.peers.loads import BY_MODEL, FULL
from bench.gpu.peers.results.figures import Figure

GO = "go"


@dataclass(frozen=True, slots=True)
class Setup:
    """What an engine's process is started with."""

    checkpoint: str
    head: str  # name of its folder; empty without speculation
    cells: list[dict[str, Any]]
    is_gpu: bool
    python: str = sys.executable  # and the folders of PYTHONPATH: those of the engine's server
    paths: tuple[str, ...] = ()

    @property
    def model(self) -> str:
        """The checkpoint's name; empty for that of the run."""
        return str(self.cells[0]["model"]).partition("-")[0]

    @property
    def dtype(self) -> str:
        """The type to compute in."""
        named = str(self.cells[0]["model"]).partition("-")[2]
        return "bfloat16" if self.is_gpu else named or "float32"

    @property
    def target(self) -> str:
        """The target's folder."""
        return str(Path(self.checkpoint, "target"))

    @property
    def draft(self) -> str:
        """The head's folder."""
        return str(Path(self.checkpoint, self.head))


Start = Callable[[Setup], tuple[ServingEngine, dict[str, Any]]]


def run_job(start: Start, load: Callable[[], None] = lambda: None) -> None:
    """Measure the cells that the command line names.

    Prints a JSON object per line: `imported`, then after a line on standard input `ready` with
    facts of the engine, then `figure` per cell. An engine that does not start prints `failed`.

    The process group ends with standard input, as the program that started it has ended then.

    Args:
        start: starts the engine; what it returns goes into `ready`.
        load: imports what is to be imported before the process has the device.
    """
    setup, may_start = Setup(**json.loads(sys.argv[1])), threading.Event()
    lines = os.dup(0)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)  # children of an engine do not read it
    threading.Thread(target=_follow_input, args=(lines, may_start), daemon=True).start()
    with os.fdopen(os.dup(1), "w", buffering=1) as out:
        os.dup2(2, 1)

        def send(what: str, content: object) -> None:
            print(json.dumps({what: content}), file=out)

        try:
            load()
            send("imported", True)
            may_start.wait()
            engine, facts = start(setup)
            runner = _runner(engine, setup)
        except Exception as error:
            traceback.print_exc()
            send("failed", f"{type(error).__name__}: {error}")
            return
        send("ready", facts)
        for document in setup.cells:
            send("figure", _measure(runner, Cell.read(document)).document())
    os._exit(0)  # peers leave threads and children, which the caller ends


def _follow_input(lines: int, may_start: threading.Event) -> None:
    """Wait for the turn, then for the end of input.

    Reads the descriptor itself: a lock of `sys.stdin` that is held here would stop a forked child.
    """
    received = b""
    while more := os.read(lines, 1024):
        received += more
        if GO.encode() in received.splitlines():
            may_start.set()
    with suppress(ProcessLookupError):
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)  # it is in the group of another process


def _runner(engine: ServingEngine, setup: Setup) -> CellRunner:
    loads = FULL if setup.is_gpu else BY_MODEL[setup.model]
    clock = clock_of(setup.is_gpu, Load(setup.cells[0]["load"]))
    return CellRunner(engine, read_answers(Path(setup.checkpoint)), loads, clock)


def _measure(runner: CellRunner, cell: Cell) -> Figure:
    try:
        return runner.measure(cell)
    except Exception as error:
        traceback.print_exc()
        return Figure.not_run(cell, f"{type(error).__name__}: {error}")
