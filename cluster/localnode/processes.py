"""Starts programs that outlive this one, and later finds and ends exactly those.

A process id alone is not a name: the kernel gives it to someone else later. A process is known here
by its id together with the moment it started and the boot of the machine it belongs to, and it is
signalled through a pidfd that was opened before those were compared.
"""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from localnode.errors import NodeError

PROC = Path("/proc")
_POLL_S = 0.05
_LOG_LINES = 15


@dataclass(frozen=True, slots=True)
class Process:
    """One run of one program, never mistaken for another."""

    name: str
    pid: int
    start_ticks: int  # since boot, as the kernel counts
    boot_id: str


@dataclass(frozen=True, slots=True)
class Stat:
    """What /proc contains for a process id right now."""

    state: str
    start_ticks: int


def parse_stat(text: str) -> Stat:
    """Read /proc/PID/stat; the program's name in it may hold spaces and parentheses."""
    fields = text[text.rindex(")") + 2 :].split()
    return Stat(state=fields[0], start_ticks=int(fields[19]))


def boot_id() -> str:
    """Name this run of the machine."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def observe(pid: int, name: str) -> Process | None:
    """Describe the process that has this id now; None when there is none or it has ended."""
    try:
        stat = parse_stat((PROC / str(pid) / "stat").read_text())
        if stat.state in "ZX" and not _has_more_threads(pid):
            return None
    except (FileNotFoundError, ProcessLookupError):
        return None
    return Process(name, pid, stat.start_ticks, boot_id())


def _has_more_threads(pid: int) -> bool:
    """Whether others outlive the first thread of a killed process; they hold its ports."""
    return len(os.listdir(PROC / str(pid) / "task")) > 1


def is_running(process: Process) -> bool:
    """Whether this very run still runs."""
    return observe(process.pid, process.name) == process


def start(
    name: str, argv: Sequence[str | Path], *, log: Path, environment: Mapping[str, str]
) -> Process:
    """Start the program in a session of its own, its output appended to the log."""
    words = [str(word) for word in argv]
    log.parent.mkdir(parents=True, exist_ok=True)
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    files = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), append, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    variables = {**os.environ, **environment}
    try:
        pid = os.posix_spawnp(words[0], words, variables, file_actions=files, setsid=True)
    except OSError as refused:
        raise NodeError(f"cannot start {words[0]}: {refused}") from refused
    process = observe(pid, name)
    # The kernel lets us continue before the new program's arguments can be read.
    while process is not None and not (PROC / str(pid) / "cmdline").read_bytes():
        process = observe(pid, name)
    if process is None:
        raise NodeError(f"{name} ended at once\n{log_tail(log)}")
    return process


def wait_until(
    condition: Callable[[], bool], what: str, *, process: Process, log: Path, timeout_s: float
) -> None:
    """Wait for a condition that the process will bring about; fail early when it has ended."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if not is_running(process):
            raise NodeError(f"{process.name} ended while waiting for {what}\n{log_tail(log)}")
        if time.monotonic() > deadline:
            raise NodeError(f"no {what} after {timeout_s:.0f} s; see {log}\n{log_tail(log)}")
        time.sleep(_POLL_S)


def log_tail(log: Path) -> str:
    """Return the last lines of a log, for the error that explains itself."""
    if not log.exists():
        return ""
    return "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])


def stop(processes: Iterable[Process], *, grace_s: float = 0) -> None:
    """End these runs and no other: politely first when there is a grace, then for certain."""
    left = list(processes)
    if grace_s > 0:
        _signal(left, signal.SIGTERM)
        left = _wait_gone(left, grace_s)
    _signal(left, signal.SIGKILL)
    stubborn = _wait_gone(left, 10)
    if stubborn:
        raise NodeError(f"these processes survive SIGKILL: {stubborn}")


def write_record(folder: Path, process: Process) -> None:
    """Remember a process that we started."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{process.name}.{os.getpid()}"
    unfinished.write_text(json.dumps(asdict(process)))
    unfinished.rename(folder / f"{process.name}.json")


def read_records(folder: Path) -> dict[str, Process]:
    """Read back what we started, by name."""
    records = (Process(**json.loads(path.read_text())) for path in folder.glob("[!.]*.json"))
    return {record.name: record for record in records}


def find(is_wanted: Callable[[Path], bool]) -> list[Process]:
    """Find processes by their folder in /proc; those that vanish meanwhile do not count."""
    found = []
    for folder in PROC.iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            process = observe(int(folder.name), "found") if is_wanted(folder) else None
            found += [process] if process else []
    return found


def _signal(processes: Iterable[Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(process.pid)
            try:
                if is_running(process):
                    signal.pidfd_send_signal(handle, number)
            finally:
                os.close(handle)


def _wait_gone(processes: list[Process], timeout_s: float) -> list[Process]:
    deadline = time.monotonic() + timeout_s
    left = processes
    while left and time.monotonic() < deadline:
        left = [process for process in left if is_running(process)]
        time.sleep(_POLL_S if left else 0)
    for process in processes:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)
    return left
