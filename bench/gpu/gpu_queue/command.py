"""`python bench/gpu/gpu_queue`: chooses what is due, runs it, or collects what was run.

Imports nothing that needs carried wheels before they are there, hence the imports in functions.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.gpu.card import find_card
from bench.gpu.carried import FOLDER, missing, use_carried
from bench.gpu.checkout import commit_of, installed_versions, project_version
from bench.gpu.report import DRY

if TYPE_CHECKING:
    from bench.gpu.gpu_queue.entries import Entry
    from bench.gpu.gpu_queue.marks import Marks
    from bench.gpu.gpu_queue.running import Place

ROOT = Path(__file__).resolve().parents[3]
MAX_MINUTES = 9
DRY_MINUTES = 60
"""A dry run has no deadline of its own; this only ends one that hangs."""
NEEDED = ("pydantic", "pydantic_core")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command line."""

    minutes: float
    out: Path | None
    collect: Path | None
    check: bool
    listing: bool
    dry_run: bool
    carry: Path

    @classmethod
    def parse(cls, arguments: list[str]) -> "Options":
        """Read it; ends the program with 2 where it makes no sense."""
        parser = argparse.ArgumentParser(
            allow_abbrev=False, prog="gpu_queue", description="Run what only a GPU can show."
        )
        kinds = parser.add_mutually_exclusive_group()
        kinds.add_argument("--minutes", type=float, help=f"for all entries, at most {MAX_MINUTES}")
        kinds.add_argument("--dry-run", action="store_true", help="all entries, at tiny sizes")
        kinds.add_argument("--collect", type=Path, help="folder of the results of a run")
        kinds.add_argument(
            "--list", action="store_true", dest="listing", help="entries, and why they are due"
        )
        kinds.add_argument("--check", action="store_true", help="read queue and marks")
        parser.add_argument("--out", type=_absolute, help="folder of the results")
        parser.add_argument(
            "--carry", type=_absolute, default=FOLDER, help="folder of carried files"
        )
        read = parser.parse_args(arguments)
        if read.minutes is not None and not 0 < read.minutes <= MAX_MINUTES:
            parser.error(f"--minutes is {read.minutes:g}; it must be above 0, at most 9")
        if not (read.minutes or read.dry_run or read.collect or read.listing or read.check):
            parser.error("give --minutes and --out, --collect, --list, --dry-run or --check")
        if read.minutes and read.out is None:
            parser.error("--minutes needs --out, the folder of the results")
        return cls(**{**vars(read), "minutes": read.minutes or DRY_MINUTES})


def main(arguments: list[str], began_s: float) -> int:
    """Do it; 1 if an entry is not done, the queue is malformed or results are refused."""
    options = Options.parse(arguments)
    use_carried(options.carry)
    if lacking := missing(NEEDED):
        raise SystemExit(f"{', '.join(lacking)}: not installed and not in {options.carry}")
    from bench.gpu.gpu_queue.collecting import collect
    from bench.gpu.gpu_queue.entries import QueueError, read_queue
    from bench.gpu.gpu_queue.marks import read_marks, reasons_due

    try:
        if options.collect is not None:
            print("\n".join([*collect(options.collect, ROOT)]) or "nothing new")
            return 0
        entries, marks = read_queue(ROOT), read_marks(ROOT)
    except QueueError as error:
        print(error, file=sys.stderr)
        return 1
    if options.check:
        return 0
    due = reasons_due(entries, marks, ROOT)
    if options.listing:
        for entry in entries:
            state = due.get(entry.name, "not due")
            print(f"{entry.name:20} {entry.seconds:4g} s  {state}\n  {entry.decides}")
        return 0
    chosen = [one for one in entries if options.dry_run or one.name in due]
    if not options.dry_run:
        begun = _begun(chosen, marks, options.out)
        chosen = sorted(_ready(chosen), key=lambda one: one.name in begun)
    return _run(chosen, options, began_s)


def _begun(entries: "Sequence[Entry]", marks: "Marks", out: Path | None) -> set[str]:
    """Return the entries alone with a part of their result, which must not block others."""
    from bench.gpu.gpu_queue.marks import is_begun
    from bench.gpu.gpu_queue.result import has_report

    version = project_version(ROOT)
    return {
        one.name
        for one in entries
        if one.alone
        and (is_begun(marks.get(one.name), version) or (out and has_report(out, one.name)))
    }


def _ready(entries: "Sequence[Entry]") -> "Iterator[Entry]":
    """Yield the entries whose files are there; print what the others lack."""
    from bench.gpu.gpu_queue.entries import missing_files

    for entry in entries:
        if names := missing_files(entry, ROOT):
            print(f"not run: {entry.name}: {', '.join(names)} is missing", flush=True)
        else:
            yield entry


def _run(entries: "list[Entry]", options: Options, began_s: float) -> int:
    from bench.gpu.gpu_queue.result import Status
    from bench.gpu.gpu_queue.running import run_queue

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    is_done = []
    try:
        with _place(entries, options) as place:
            for result in run_queue(entries, place, began_s + 60 * options.minutes):
                is_done.append(result.status is Status.DONE)
                line = f"{result.status:11} {result.entry:20} {result.seconds:6.1f} s"
                print(f"{line}  {result.reason}".rstrip(), flush=True)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    print(f"{len(is_done)} of {len(entries)} entries were run")
    return 0 if all(is_done) else 1


@contextmanager
def _place(entries: "list[Entry]", options: Options) -> "Iterator[Place]":
    from bench.gpu.gpu_queue.bases import base_folder, carry_base
    from bench.gpu.gpu_queue.running import Place

    is_dry, commit = options.dry_run, commit_of(ROOT, options.carry)
    out = options.out or Path(tempfile.mkdtemp(prefix="gpu-queue-dry-run-"))
    card = f"shadow device ({DRY})" if is_dry else _card()
    print(f"{card}, commit {commit}; results go to {out}", flush=True)
    with tempfile.TemporaryDirectory(prefix="gpu-queue-bases-") as exported:
        commits = {entry.base.commit for entry in entries if entry.base is not None}
        bases = options.carry
        if is_dry and not all(base_folder(bases, one).exists() for one in commits):
            bases = Path(exported)
            for one in commits:
                try:
                    carry_base(one, bases)
                except subprocess.CalledProcessError:  # its entry ends alone, without the folder
                    print(f"commit {one} is not in this clone: git fetch --unshallow", flush=True)
        versions = installed_versions()
        yield Place(ROOT, out, options.carry, bases, is_dry, card, commit, versions)


def _absolute(text: str) -> Path:
    """Commands run in the checkout, wherever this program was started."""
    return Path(text).resolve()


def _card() -> str:
    found = find_card()
    if not found.name:
        raise SystemExit(
            f"no GPU: {found.reason}; --dry-run runs every entry at tiny sizes without one"
        )
    return found.name
