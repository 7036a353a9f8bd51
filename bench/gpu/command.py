"""`python bench/gpu`: chooses device and sizes, runs the sections, writes the report.

Imports nothing that needs carried wheels before they are there, hence the imports in functions.
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from bench.gpu.carried import FOLDER, missing, use_carried
from bench.gpu.checkout import commit_of, installed_versions
from bench.gpu.report import DRY, Report, Run

if TYPE_CHECKING:
    from bench.gpu.context import Context
    from bench.gpu.record import SectionRecord

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"
TOTAL_S = 540
SPARE_S = 10
"""Left at the end for what has to be stopped."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command line."""

    dry_run: bool
    seconds: float
    only: tuple[str, ...]
    out: Path | None
    carry: Path

    @classmethod
    def parse(cls, arguments: list[str]) -> "Options":
        """Read it; ends the program with 2 where it makes no sense."""
        parser = argparse.ArgumentParser(allow_abbrev=False, prog="bench/gpu", description=__doc__)
        parser.add_argument("--dry-run", action="store_true", help="tiny sizes on a shadow device")
        parser.add_argument("--seconds", type=float, default=TOTAL_S, help="for all of it")
        parser.add_argument("--only", default="", help="sections by name, comma between")
        parser.add_argument("--out", type=Path, help="folder of the results")
        parser.add_argument("--carry", type=Path, default=FOLDER, help="folder of carried wheels")
        read = parser.parse_args(arguments)
        only = tuple(name for name in read.only.split(",") if name)
        return cls(read.dry_run, read.seconds, only, read.out, read.carry)


def main(arguments: list[str], began_s: float) -> int:
    """Run; 1 if a section failed or was cut off, 3 if the deadline ended all of it."""
    options = Options.parse(arguments)
    for wheel in use_carried(options.carry):
        print(f"carried: {wheel}", flush=True)
    if lacking := missing():
        raise SystemExit(
            f"{', '.join(lacking)}: not installed and not among the wheels for this interpreter in "
            f"{options.carry}; run `make gpu-carry` where there is a network and bring that folder"
        )
    import torch

    is_dry = options.dry_run or not torch.cuda.is_available()
    folder = _folder(options.out, is_dry)
    if is_dry:
        why = "asked for" if options.dry_run else "torch finds no CUDA device here"
        print(f"{DRY}: {why}; results go to {folder}", flush=True)
    report = Report(_run(is_dry, options.carry), folder)
    with tempfile.TemporaryDirectory(prefix="gpu-bench-") as models, _device(is_dry):
        return _run_all(options, _context(is_dry, Path(models)), report, began_s)


def _run_all(options: Options, context: "Context", report: Report, began_s: float) -> int:
    from bench.gpu.record import State
    from bench.gpu.runner import run_sections
    from bench.gpu.sections import SECTIONS

    if unknown := set(options.only) - {one.name for one in SECTIONS}:
        raise SystemExit(f"--only {', '.join(sorted(unknown))}: no section has this name")
    chosen = [one for one in SECTIONS if not options.only or one.name in options.only]
    if context.is_dry:  # on any machine, next to anything else
        chosen = [replace(one, budget_s=options.seconds) for one in chosen]
    ends_s = began_s + options.seconds
    records: tuple[SectionRecord, ...] = ()
    running: str | None = None

    def write(so_far: "tuple[SectionRecord, ...]", next_name: str | None) -> None:
        nonlocal records, running
        new, records, running = so_far[len(records) :], so_far, next_name
        report.write(so_far, "complete" if next_name is None else f"running {next_name}")
        for record in new:
            print(f"{record.state:8} {record.name:12} {record.seconds:6.1f} s", flush=True)

    def write_at_the_deadline() -> None:
        if running is not None:
            report.write(records, f"cut off in {running}")

    _watch(ends_s, write_at_the_deadline)
    run_sections(chosen, context, ends_s - SPARE_S, write)
    print(f"{report.json_file}\n{report.markdown_file}", flush=True)
    return int(any(record.state in (State.FAILED, State.CUT) for record in records))


def _watch(ends_s: float, write: Callable[[], None]) -> None:
    """End the program at the deadline, whatever hangs, with what has been measured so far.

    Nothing calls it off: a library may hang when the interpreter ends, too.
    """

    def end() -> None:
        write()
        print("cut off at the deadline", file=sys.stderr, flush=True)
        os._exit(3)

    timer = threading.Timer(max(ends_s - time.monotonic(), 0), end)
    timer.daemon = True
    timer.start()


def _folder(out: Path | None, is_dry: bool) -> Path:
    if out is None:
        return Path(tempfile.mkdtemp(prefix="gpu-dry-run-")) if is_dry else RESULTS
    if is_dry and out.resolve() == RESULTS:
        raise SystemExit(f"--out {out}: a dry run measures nothing; choose another folder")
    return out


@contextmanager
def _device(is_dry: bool) -> Iterator[None]:
    if not is_dry:
        yield
        return
    sys.path.append(str(ROOT))
    from bench.gpu.shadow import shadow_device

    with shadow_device():
        yield


def _context(is_dry: bool, models: Path) -> "Context":
    import torch

    from bench.gpu.context import Context
    from bench.gpu.engines import Engines
    from bench.gpu.scale import DRY as DRY_SCALE
    from bench.gpu.scale import REAL

    device = torch.device("cuda")
    scale = DRY_SCALE if is_dry else REAL
    return Context(device, is_dry, scale, Engines(device, scale, models))


def _run(is_dry: bool, carry: Path) -> Run:
    import torch

    device = f"shadow device ({DRY})" if is_dry else torch.cuda.get_device_name()
    date = datetime.now(UTC).date().isoformat()
    return Run(device, date, is_dry, installed_versions(), commit_of(ROOT, carry))
