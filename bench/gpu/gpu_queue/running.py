"""Runs entries one after another, each alone and within its limit, and writes each one's result."""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.gpu.gpu_queue.bases import base_folder
from bench.gpu.gpu_queue.digests import digests_of
from bench.gpu.gpu_queue.entries import Entry, limit_of, next_entry
from bench.gpu.gpu_queue.process import Ended, run_alone
from bench.gpu.gpu_queue.result import EntryResult, Status, write_result

NEW, BASE = "new", "base"
DRY_LIMIT_S = 600.0
"""A dry run is about right or wrong, on any machine, next to anything else."""
TO_WRITE_S = 3.0
"""What a command's own deadline is before its limit, so that it still writes its report."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run takes place, and what its results are of."""

    root: Path
    out: Path
    carry: Path
    bases: Path  # with the folders of older commits
    is_dry: bool
    card: str
    commit: str
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SideRun:
    """How the command of one side ended, and the report that it wrote."""

    ended: Ended
    report: object | None


def run_queue(
    waiting: Sequence[Entry],
    place: Place,
    ends_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[EntryResult]:
    """Run from the top what fits until `ends_s`; yield each result after it is written.

    Raises:
        KeyboardInterrupt: the run was interrupted; the entry under way has a result, too.
    """
    left = list(waiting)
    while (entry := next_entry(left, ends_s - clock())) is not None:
        left = [] if entry.alone and not place.is_dry else _others(left, entry, place.is_dry)
        limit_s = DRY_LIMIT_S if place.is_dry else limit_of(entry, ends_s - clock())
        result = _run(entry, place, limit_s)
        write_result(place.out, result)
        yield result
        if result.status is Status.INTERRUPTED:
            raise KeyboardInterrupt


def _others(left: Sequence[Entry], entry: Entry, is_dry: bool) -> list[Entry]:
    """Return what may be run after an entry: in a run with others, nothing that has to be alone."""
    return [one for one in left if one is not entry and (is_dry or not one.alone)]


def _run(entry: Entry, place: Place, limit_s: float) -> EntryResult:
    files, began_s = digests_of(place.root, entry.files), time.monotonic()
    runs: dict[str, SideRun] = {}
    with tempfile.TemporaryDirectory(prefix="gpu-queue-") as work:
        try:
            for side, command in _commands(entry, place).items():
                share_s = limit_s / 2 if entry.base else limit_s
                out = _out_of(entry, place, Path(work, side))
                runs[side] = _run_side(command, place, share_s, out, Path(work, f"{side}.log"))
        except KeyboardInterrupt:
            reason = "the run was interrupted"
            ended = Ended(Status.INTERRUPTED, reason, None, 0.0, "")
            runs[side] = SideRun(ended, _report(out))
    worst_side, worst = _worst(runs)
    prefix = f"{worst_side}: " if worst.reason and entry.base else ""
    return EntryResult(
        entry=entry.name,
        status=worst.status,
        reason=prefix + worst.reason,
        seconds=round(time.monotonic() - began_s, 1),
        exit_code=worst.exit_code,
        commit=place.commit,
        base=entry.base,
        date=datetime.now(UTC).date().isoformat(),
        card=place.card,
        is_dry=place.is_dry,
        versions=dict(place.versions),
        command=entry.command,
        files=files,
        reports={side: run.report for side, run in runs.items() if run.report is not None},
        tail=worst.tail,
    )


def _worst(runs: Mapping[str, SideRun]) -> tuple[str, Ended]:
    """Return the first side that is not done, or the last one."""
    not_done = [side for side, run in runs.items() if run.ended.status is not Status.DONE]
    side = not_done[0] if not_done else [*runs][-1]
    return side, runs[side].ended


def _commands(entry: Entry, place: Place) -> dict[str, list[str]]:
    commands = {NEW: _command(place.root, entry.command)}
    if entry.base is not None:
        folder = base_folder(place.bases, entry.base.commit)
        commands[BASE] = _command(folder, entry.base.command)
    return commands


def _command(root: Path, words: Sequence[str]) -> list[str]:
    return [sys.executable, str(root / words[0]), *words[1:]]


def _out_of(entry: Entry, place: Place, work: Path) -> Path:
    """Return the empty folder of a command's results; of an entry alone it stays, to be continued.

    Reports of an earlier run are removed from that one.
    """
    out = place.out / entry.name if entry.alone else work
    out.mkdir(parents=True, exist_ok=True)
    for file in out.glob("*.json"):
        file.unlink()
    return out


def _run_side(
    command: Sequence[str], place: Place, limit_s: float, out: Path, log: Path
) -> SideRun:
    program = Path(command[1])
    if not program.exists():
        reason = f"{program} is missing; bring the folder that `make gpu-carry` writes"
        return SideRun(Ended(Status.FAILED, reason, None, 0.0, ""), None)
    seconds = max(limit_s - TO_WRITE_S, 1.0)
    more = ["--seconds", f"{seconds:.1f}", "--out", str(out), "--carry", str(place.carry)]
    if place.is_dry:
        more.append("--dry-run")
    ended = run_alone([*command, *more], place.root, _variables(place), limit_s, log)
    report = _report(out)
    if ended.status is Status.DONE and report is None:
        reason = "its command wrote no report"
        ended = Ended(Status.FAILED, reason, ended.exit_code, ended.seconds, ended.tail)
    return SideRun(ended, report)


def _variables(place: Place) -> dict[str, str]:
    """Return the environment: a checkout's own modules, and in a dry run one thread."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    one_thread = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    return variables | one_thread if place.is_dry else variables


def _report(folder: Path) -> Any:
    files = sorted(folder.glob("*.json"))
    return json.loads(files[0].read_text()) if files else None
