"""The folder of checkpoint and unpacked peers, and what is written into it before engines run."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.gpu.peers.cells import PEERS, Engine
from bench.gpu.peers.parts import PINNED, PartsError, unpack_peer
from checks.harness.installation import PeerUnavailable
from checks.vllm_cpu.environment import VERSION, ensure_vllm

ROOT = Path(__file__).resolve().parents[3]
SHARED_MEMORY = Path("/dev/shm")
FOLDER = "bench-peers"
NEEDED_BYTES = 24 << 30
"""The checkpoint, the unpacked peers, and what must remain."""


class WorkError(Exception):
    """There is no room for the checkpoint; the text has sizes and remedy."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What engines need: the folders that each imports from, and why some cannot start."""

    checkpoint: Path
    paths: Mapping[Engine, list[str]]
    unavailable: Mapping[Engine, str]
    pinned: Mapping[str, str]
    pythons: Mapping[Engine, str]


def choose_work(named: Path | None, out: Path, shared_memory: Path = SHARED_MEMORY) -> Path:
    """Return the folder with room for the checkpoint of 8B: the named one, or shared memory.

    Args:
        out: the folder of the results, which travels.

    Raises:
        WorkError: there is less room, or the folder is below that of the results.
    """
    folder = (named or shared_memory / FOLDER).resolve()
    if folder.is_relative_to(out.resolve()):
        raise WorkError(
            f"{folder} is below {out}, the folder of the results; the checkpoint takes 18 GiB; "
            "name another folder with --work"
        )
    if (room := room_of(folder)) < NEEDED_BYTES:
        raise WorkError(
            f"{folder} has room for {room / 2**30:.1f} GiB; checkpoint and peers take "
            f"{NEEDED_BYTES >> 30} GiB; name another folder with --work"
        )
    return folder


def room_of(folder: Path) -> int:
    """Return the bytes that are free for a folder, and those of its files."""
    parent = next(one for one in (folder, *folder.parents) if one.exists())
    return shutil.disk_usage(parent).free + bytes_of(folder)


def bytes_of(folder: Path) -> int:
    """Return the bytes of all files of a folder; 0 without one."""
    return sum(one.stat().st_size for one in folder.rglob("*") if one.is_file())


def prepare(
    work: Path, parts: Path, sizes: Sequence[str], ends_s: float, *, is_gpu: bool, has_vllm: bool
) -> Prepared:
    """Write the checkpoints and unpack the peers; what fails is why cells have no figures.

    Args:
        sizes: of checkpoints; the first is that of the run.
        has_vllm: install vLLM for a CPU.
    """
    own = [path for path in sys.path if path]
    paths: dict[Engine, list[str]] = {Engine.OWN: own, Engine.TRANSFORMERS: own}
    unavailable: dict[Engine, str] = {}
    pythons: dict[Engine, str] = {}
    for number, size in enumerate(sizes):
        folder = work / (size if number else "checkpoint")
        if reason := _write_checkpoint(folder, size, ends_s, is_gpu):
            unavailable = dict.fromkeys(Engine, reason)
    for peer in PEERS if is_gpu else ():
        try:
            paths[peer] = [*map(str, unpack_peer(parts, peer, work)), str(ROOT)]
        except PartsError as error:
            unavailable.setdefault(peer, str(error))
    if has_vllm:
        try:
            pythons[Engine.VLLM], paths[Engine.VLLM] = str(ensure_vllm()), [str(ROOT)]
        except PeerUnavailable as error:
            unavailable.setdefault(Engine.VLLM, str(error))
    pinned = {str(Engine.VLLM): VERSION} if has_vllm else PINNED
    return Prepared(work / "checkpoint", paths, unavailable, pinned, pythons)


def _write_checkpoint(folder: Path, size: str, ends_s: float, is_gpu: bool) -> str:
    """Write the checkpoint unless it is there; return why there is none."""
    command = [sys.executable, "-m", "bench.gpu.peers.checkpoint", str(folder), size]
    limit_s = max(ends_s - time.monotonic(), 1.0)
    try:
        done = subprocess.run(
            [*command, "cuda" if is_gpu else "cpu"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            capture_output=True,
            text=True,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        return f"the checkpoint was not written within {limit_s:.0f} s"
    if not done.returncode:
        return ""
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return f"the checkpoint was not written: {lines[-1]}"
