"""`python bench/gpu/peers`: writes the checkpoint, runs the engines, prints table and JSON.

Imports nothing that needs carried wheels before they are there, hence the imports in functions.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.gpu.carried import FOLDER, missing, use_carried
from bench.gpu.checkout import commit_of, installed_versions
from bench.gpu.peers.cells import PEERS, Engine, cells_of, cpu_jobs, gpu_jobs
from bench.gpu.peers.parts import PARTS, PINNED, PartsError, unpack_peer
from bench.gpu.peers.recording import read_recording
from bench.gpu.peers.results.figures import FiguresError, FiguresFile, RunFacts

if TYPE_CHECKING:
    from bench.gpu.peers.cells import Job
    from bench.gpu.peers.jobs.engine_process import RunPlace

ROOT = Path(__file__).resolve().parents[3]
OUT = ROOT / "build" / "peers"
SHARED_MEMORY = Path("/dev/shm")
SHARED_MEMORY_BYTES = 30 << 30
"""Free there: the checkpoint is written to it, else below the folder of the results."""
TOTAL_S = 500.0
PROBE = "import torch; print(torch.cuda.get_device_name())"
PROBE_LIMIT_S = 90


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command line."""

    seconds: float
    out: Path | None
    work: Path | None
    carry: Path
    parts: Path
    dry_run: bool

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
        return cls(**vars(parser.parse_args(arguments)))


def main(arguments: list[str], began_s: float) -> int:
    """Run; 1 if a token is wrong, an engine has no figure or, without a GPU, a cell has none."""
    options = Options.parse(arguments)
    use_carried(options.carry)
    if lacking := missing():
        raise SystemExit(f"{', '.join(lacking)}: not installed and not in {options.carry}")
    card = None if options.dry_run else find_card()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _folders(options, card is not None) as (out, work):
            return _run(options, card, out.resolve(), work.resolve(), began_s)
    except FiguresError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _run(options: Options, card: str | None, out: Path, work: Path, began_s: float) -> int:
    from bench.gpu.peers.jobs.driver import run_jobs
    from bench.gpu.peers.results.report import PeersResult

    size = "tiny" if card is None else "8b"
    facts = _facts(card, size, options.carry)
    file = FiguresFile(out, facts)
    print(f"{facts.card}, commit {facts.commit}; results go to {out}", flush=True)
    place = _place(options, card is not None, size, out, work)
    jobs = cpu_jobs() if card is None else gpu_jobs()
    for line in run_jobs(jobs, place, file, began_s + options.seconds):
        print(f"{time.monotonic() - began_s:6.1f} s  {line}", flush=True)
    seconds = time.monotonic() - began_s
    result = PeersResult(
        facts, seconds, file.figures, read_recording().statistics(), is_gpu=card is not None
    )
    result.write(out)
    print(result.table())
    print(json.dumps(result.document()))
    return 1 if result.wrong or not _is_complete(jobs, file, is_gpu=card is not None) else 0


def _is_complete(jobs: "Sequence[Job]", file: FiguresFile, *, is_gpu: bool) -> bool:
    """Whether all cells have a figure; on a GPU, where time may lack, some of every engine."""
    measured = [cell for cell in cells_of(jobs) if file.is_measured(cell)]
    if is_gpu:
        return {cell.engine for cell in measured} == {job.engine for job in jobs}
    return len(measured) == len([*cells_of(jobs)])


def find_card() -> str | None:
    """Return the name of the GPU, by a process that is gone afterwards; None without one."""
    command = [sys.executable, "-c", PROBE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise SystemExit(f"torch did not answer within {PROBE_LIMIT_S} s") from None
    return None if done.returncode else done.stdout.strip().splitlines()[-1]


def _facts(card: str | None, size: str, carry: Path) -> RunFacts:
    from checks.harness.machine import processor_model

    versions, commit = installed_versions(), commit_of(ROOT, carry)
    if card is None:
        return RunFacts(commit, processor_model(), versions, "seconds of processor time", size)
    return RunFacts(commit, card, versions | PINNED, size=size)


@contextmanager
def _folders(options: Options, is_gpu: bool) -> Iterator[tuple[Path, Path]]:
    """Yield the folders of results and of work; without a GPU, those not named are temporary."""
    with tempfile.TemporaryDirectory(prefix="bench-peers-") as temporary:
        if not is_gpu:
            out = options.out or Path(temporary, "out")
            yield out, options.work or Path(temporary, "work")
            return
        out = options.out or OUT
        yield out, options.work or _work_folder(out)


def _work_folder(out: Path) -> Path:
    try:
        if shutil.disk_usage(SHARED_MEMORY).free >= SHARED_MEMORY_BYTES:
            return SHARED_MEMORY / "bench-peers"
    except OSError:
        pass
    return out / "work"


def _place(options: Options, is_gpu: bool, size: str, out: Path, work: Path) -> "RunPlace":
    """Write the checkpoint and unpack the peers; what fails is why cells have no figures."""
    from bench.gpu.peers.jobs.engine_process import RunPlace

    own = [path for path in sys.path if path]
    paths: dict[Engine, list[str]] = {Engine.OWN: own, Engine.TRANSFORMERS: own}
    unavailable: dict[Engine, str] = {}
    if reason := _checkpoint(work / "checkpoint", size, is_gpu):
        unavailable = dict.fromkeys(Engine, reason)
    for peer in PEERS if is_gpu else ():
        try:
            paths[peer] = [*map(str, unpack_peer(options.parts, peer, work)), str(ROOT)]
        except PartsError as error:
            unavailable.setdefault(peer, str(error))
    return RunPlace(ROOT, work / "checkpoint", out / "logs", is_gpu, paths, unavailable)


def _checkpoint(folder: Path, size: str, is_gpu: bool) -> str:
    """Write the checkpoint unless it is there; return why there is none."""
    command = [sys.executable, "-m", "bench.gpu.peers.checkpoint", str(folder), size]
    done = subprocess.run(
        [*command, "cuda" if is_gpu else "cpu"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
    )
    if not done.returncode:
        return ""
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return f"the checkpoint was not written: {lines[-1]}"
