"""A process is ended only when it is the very run that was recorded."""

import dataclasses
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localnode import processes
from localnode.errors import NodeError
from localnode.processes import Process, Stat


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Process]:
    process = processes.start(
        "sleeper", ["sleep", "60"], log=tmp_path / "log", environment={"COLOUR": "blue"}
    )
    yield process
    processes.stop([process])


@pytest.mark.parametrize(
    "name", ["(etcd)", "(a b)", "(weird) S 1 (x)", "())"], ids=["plain", "space", "tricky", "paren"]
)
def test_stat_is_read_behind_the_last_parenthesis(name: str) -> None:
    numbers = " ".join(str(n) for n in range(4, 30))
    assert processes.parse_stat(f"42 {name} R {numbers}") == Stat(state="R", start_ticks=22)


def test_a_started_process_is_found_running_then_ended(sleeper: Process) -> None:
    assert processes.is_running(sleeper)
    processes.stop([sleeper])
    assert not processes.is_running(sleeper)


def test_a_polite_stop_needs_no_kill(sleeper: Process) -> None:
    processes.stop([sleeper], grace_s=5)
    assert not processes.is_running(sleeper)


@pytest.mark.parametrize(
    "other", [{"start_ticks": 1}, {"boot_id": "another boot"}], ids=["recycled", "rebooted"]
)
def test_a_recycled_id_is_never_signalled(sleeper: Process, other: dict[str, Any]) -> None:
    former = dataclasses.replace(sleeper, **other)
    assert not processes.is_running(former)
    processes.stop([former], grace_s=0.1)
    assert processes.is_running(sleeper)


def test_an_ended_child_that_nobody_reaped_does_not_run(tmp_path: Path) -> None:
    child = os.posix_spawnp("true", ["true"], os.environ)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    try:
        assert processes.observe(child, "child") is None
    finally:
        os.waitpid(child, 0)


FIRST_THREAD_ENDS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_runs_as_long_as_any_of_its_threads(tmp_path: Path) -> None:
    """A killed server's other threads hold its port for a moment after the first has ended."""
    words = [sys.executable, "-c", FIRST_THREAD_ENDS]
    process = processes.start("threads", words, log=tmp_path / "log", environment={})
    stat = Path("/proc", str(process.pid), "stat")
    ends_s = time.monotonic() + 30
    while processes.parse_stat(stat.read_text()).state != "Z":
        assert time.monotonic() < ends_s
        time.sleep(0.01)
    assert processes.is_running(process)
    processes.stop([process])
    assert not processes.is_running(process)


def test_records_come_back_as_written(tmp_path: Path, sleeper: Process) -> None:
    processes.write_record(tmp_path, sleeper)
    assert processes.read_records(tmp_path) == {"sleeper": sleeper}


def test_processes_are_found_by_their_environment(tmp_path: Path, sleeper: Process) -> None:
    """For a moment after exec, the kernel shows an empty environment."""

    def is_found() -> bool:
        found = processes.find(lambda folder: b"COLOUR=blue" in (folder / "environ").read_bytes())
        return sleeper.pid in [process.pid for process in found]

    log = tmp_path / "log"
    processes.wait_until(is_found, "its environment", process=sleeper, log=log, timeout_s=30)
    assert is_found()


def test_waiting_for_a_dead_process_fails_early_and_shows_its_words(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = "echo no such flag; sleep 0.2; exit 1"
    process = processes.start("broken", ["sh", "-c", script], log=log, environment={})
    with pytest.raises(NodeError, match="no such flag"):
        processes.wait_until(lambda: False, "rain", process=process, log=log, timeout_s=30)
    processes.stop([process])
