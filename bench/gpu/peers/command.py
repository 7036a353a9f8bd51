"""`python bench/gpu/peers`: writes the checkpoint, runs the engines, prints table and JSON.

Imports nothing that needs carried wheels before they are there, hence the imports in functions.
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.gpu.card import find_card
from bench.gpu.carried import FOLDER, missing, use_carried
from bench.gpu.checkout import commit_of, installed_versions
from bench.gpu.peers.cells import cells_of, cpu_jobs, gpu_jobs, vllm_cpu_jobs
from bench.gpu.peers.parts import PARTS, PINNED
from bench.gpu.peers.recording import read_recording
from bench.gpu.peers.results.figures import FiguresError, FiguresFile, RunFacts
from bench.gpu.peers.work import Prepared, WorkError, bytes_of, choose_work, prepare

if TYPE_CHECKING:
    from bench.gpu.peers.cells import Job
    from bench.gpu.peers.jobs.engine_process import RunPlace

ROOT = Path(__file__).resolve().parents[3]
OUT = ROOT / "build" / "peers"
TOTAL_S = 500.0
TO_END_S = 12.0
"""To end the last engine and write the result."""
ON_A_GPU, TINY, VLLM_CPU = ("8b",), ("tiny",), ("tiny", "pair", "540m")
"""Checkpoints of a run, the first one its own."""
NVIDIA_DEVICE = Path("/dev/nvidiactl")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command line."""

    seconds: float
    out: Path | None
    work: Path | None
    carry: Path
    parts: Path
    dry_run: bool
    vllm_cpu: bool

    @classmethod
    def parse(cls, arguments: list[str]) -> "Options":
        """Read it; ends the program with 2 if it is not valid."""
        parser = argparse.ArgumentParser(
            allow_abbrev=False,
            prog="bench/gpu/peers",
            description="Compare this engine with vLLM and SGLang on one GPU.",
        )
        parser.add_argument("--seconds", type=float, default=TOTAL_S, help="for all of it")
        parser.add_argument(
            "--out", type=Path, help="folder of the results, continued if it exists"
        )
        parser.add_argument("--work", type=Path, help="folder of checkpoint and unpacked peers")
        parser.add_argument("--carry", type=Path, default=FOLDER, help="folder of carried wheels")
        parser.add_argument("--parts", type=Path, default=PARTS, help="folder of packed peers")
        parser.add_argument("--dry-run", action="store_true", help="tiny sizes, without a GPU")
        parser.add_argument(
            "--vllm-cpu", action="store_true", help="this engine next to vLLM 0.32.0 on a CPU"
        )
        options = cls(**vars(parser.parse_args(arguments)))
        for name, folder in (("--out", options.out), ("--work", options.work)):
            if folder is not None and folder.exists() and not folder.is_dir():
                parser.error(f"{name} is {folder}, which is a file; name a folder")
        return options


def main(arguments: list[str], began_s: float) -> int:
    """Run; 1 if a token is wrong, an engine has no figure or, without a GPU, a cell has none."""
    options = Options.parse(arguments)
    use_carried(options.carry)
    if lacking := missing():
        raise SystemExit(f"{', '.join(lacking)}: not installed and not in {options.carry}")
    card = None if options.dry_run or options.vllm_cpu else _card()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _folders(options, card is not None) as (out, work):
            return _run(options, card, out.resolve(), work.resolve(), began_s)
    except (FiguresError, WorkError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _run(options: Options, card: str | None, out: Path, work: Path, began_s: float) -> int:
    from bench.gpu.peers.jobs.driver import run_jobs
    from bench.gpu.peers.results.report import PeersResult

    sizes = VLLM_CPU if options.vllm_cpu else TINY if card is None else ON_A_GPU
    facts = _facts(card, "+".join(sizes), options)
    file = FiguresFile(out, facts)
    print(f"{facts.card}, commit {facts.commit}; results go to {out}", flush=True)
    ends_s = began_s + options.seconds - TO_END_S
    prepared = prepare(
        work, options.parts, sizes, ends_s, is_gpu=card is not None, has_vllm=options.vllm_cpu
    )
    place = _place(prepared, work, out, is_gpu=card is not None)
    every = vllm_cpu_jobs if options.vllm_cpu else cpu_jobs if card is None else gpu_jobs
    jobs = every()
    recording = read_recording().statistics()

    def write_result() -> PeersResult:
        """Write what there is so far, as the run may be ended before its end."""
        seconds = time.monotonic() - began_s
        written = PeersResult(facts, seconds, file.figures, recording, is_gpu=card is not None)
        written.write(out)
        return written

    result = write_result()
    for line in run_jobs(jobs, place, file, ends_s):
        print(f"{time.monotonic() - began_s:6.1f} s  {line}", flush=True)
        result = write_result()
    if card is not None:
        kept = f"{bytes_of(work) / 2**30:.1f} GiB, used by a later run"
        print(f"checkpoint and peers stay in {work} ({kept}); remove it when no run follows")
    print(result.table())
    print(json.dumps(result.document()))
    return 1 if result.wrong or not is_complete(jobs, file, is_gpu=card is not None) else 0


def _place(prepared: Prepared, work: Path, out: Path, *, is_gpu: bool) -> "RunPlace":
    from bench.gpu.peers.jobs.engine_process import RunPlace
    from bench.gpu.peers.jobs.log_archive import FILE

    return RunPlace(
        ROOT,
        prepared.checkpoint,
        work / "logs",
        out / FILE,
        is_gpu,
        prepared.paths,
        prepared.unavailable,
        prepared.pinned,
        prepared.pythons,
    )


def is_complete(jobs: "Sequence[Job]", file: FiguresFile, *, is_gpu: bool) -> bool:
    """Whether all cells have a figure.

    On a GPU, cells that could not be run are enough, but for an engine without any figure; a cell
    that was left for want of time is not.
    """
    cells = [*cells_of(jobs)]
    measured = [cell for cell in cells if file.is_measured(cell)]
    if not is_gpu:
        return len(measured) == len(cells)
    return file.figures.keys() >= {*cells} and (
        {cell.engine for cell in measured} == {job.engine for job in jobs}
    )


def _card() -> str | None:
    """Return the name of the GPU; None on a machine without one.

    Raises:
        SystemExit: the machine has a GPU that torch cannot use.
    """
    found = find_card()
    if found.name:
        return found.name
    if NVIDIA_DEVICE.exists():
        raise SystemExit(f"no GPU: {found.reason}; --dry-run runs at tiny sizes without one")
    print(f"no GPU: {found.reason}; sizes are tiny", flush=True)
    return None


def _facts(card: str | None, size: str, options: Options) -> RunFacts:
    from checks.harness.machine import processor_model
    from checks.vllm_cpu.environment import VERSION

    versions, commit = installed_versions(), commit_of(ROOT, options.carry)
    if options.vllm_cpu:
        versions |= {"vllm": VERSION}
    if card is None:
        return RunFacts(commit, processor_model(), versions, "seconds of processor time", size)
    return RunFacts(commit, card, versions | PINNED, size=size)


@contextmanager
def _folders(options: Options, is_gpu: bool) -> Iterator[tuple[Path, Path]]:
    """Yield the folders of results and of work; without a GPU, those not named are temporary."""
    if is_gpu:
        out = options.out or OUT
        yield out, choose_work(options.work, out)
        return
    with tempfile.TemporaryDirectory(prefix="bench-peers-") as temporary:
        out = options.out or Path(temporary, "out")
        yield out, options.work or Path(temporary, "work")
