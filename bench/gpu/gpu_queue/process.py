"""One command in a process group of its own, which ends within its limit whatever it does."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.gpu.gpu_queue.result import Status

TAIL_BYTES = 4000
REAPED_WITHIN_S = 10.0
"""A process in a driver's call may outlive SIGKILL for a moment."""
FIRST_TO_BE_KILLED = "1000"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    status: Status
    reason: str  # empty if it is done
    exit_code: int | None
    seconds: float
    tail: str


def run_alone(
    command: Sequence[str], folder: Path, variables: Mapping[str, str], limit_s: float, log: Path
) -> Ended:
    """Run a command; on return, no process of its group is left.

    If the machine's memory runs out, the command is ended before this program.

    Args:
        folder: the working directory.
        log: gets what it prints.
    """
    began_s = time.monotonic()
    status, code = Status.TIMED_OUT, None
    with (
        log.open("wb") as output,
        _group(command, folder, variables, output.fileno()) as process,
        suppress(subprocess.TimeoutExpired),
    ):
        code = process.wait(limit_s)
        status = _status(code)
    seconds = time.monotonic() - began_s
    tail = _tail(log)
    return Ended(status, _reason(status, code, limit_s, tail), code, seconds, tail)


@contextmanager
def _group(
    command: Sequence[str], folder: Path, variables: Mapping[str, str], output: int
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        process_group=0,
    )
    try:
        with suppress(OSError):  # it has ended, or the system has no such file
            Path(f"/proc/{process.pid}/oom_score_adj").write_text(FIRST_TO_BE_KILLED)
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(REAPED_WITHIN_S)


def _status(code: int) -> Status:
    if code < 0:
        return Status.KILLED
    return Status.FAILED if code else Status.DONE


def _reason(status: Status, code: int | None, limit_s: float, tail: str) -> str:
    if status is Status.DONE:
        return ""
    if status is Status.TIMED_OUT:
        return f"ended after its limit of {limit_s:g} s"
    if status is Status.KILLED:
        assert code is not None
        more = "; the machine's memory may have run out" if -code == signal.SIGKILL else ""
        return f"ended by {signal.Signals(-code).name}{more}"
    last = next((line for line in reversed(tail.splitlines()) if line.strip()), "printed nothing")
    return f"exit status {code}: {last}"


def _tail(log: Path) -> str:
    return log.read_bytes()[-TAIL_BYTES:].decode(errors="replace")
