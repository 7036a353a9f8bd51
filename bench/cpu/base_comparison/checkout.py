"""The two sides: this checkout, and another commit exported and installed below the cache."""

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.cpu.peers.idle import MAX_LOAD_VARIABLE

ROOT = Path(__file__).resolve().parents[3]
INSTALL_TIMEOUT_S = 900
_DONE = ".installed"


@dataclass(frozen=True, slots=True)
class Side:
    """A checkout with its environment."""

    name: str
    commit: str
    root: Path
    python: Path


def this_side() -> Side:
    """Return this checkout as it is; its commit ends in `+` if files were changed."""
    changed = git("status", "--porcelain", "--untracked-files=no")
    return Side("new", git("rev-parse", "HEAD") + "+" * bool(changed), ROOT, Path(sys.executable))


def base_side(revision: str, cache: Path | None = None) -> Side:
    """Export and install a commit, unless that was done before.

    Raises:
        subprocess.CalledProcessError: there is no such commit, or it could not be installed.
    """
    commit = git("rev-parse", "--verify", f"{revision}^{{commit}}")
    folder = (cache or default_cache()) / commit
    if not (folder / _DONE).exists():
        export(commit, folder)
        print(f"installing {commit[:12]} into {folder}", file=sys.stderr, flush=True)
        subprocess.run(
            ["uv", "sync", "--frozen", "--quiet"],
            cwd=folder,
            env=own_environment(folder),
            timeout=INSTALL_TIMEOUT_S,
            check=True,
        )
        (folder / _DONE).touch()
    return Side("base", commit, folder, folder / ".venv" / "bin" / "python")


def export(commit: str, folder: Path, parts: Sequence[str] = ()) -> None:
    """Write the files of a commit into a folder; the repository stays as it is.

    Args:
        parts: git's patterns of files that are written, those without a match left out; all of
            them if empty.
    """
    listed = [part for part in parts if part.startswith(":") or git("ls-tree", commit, "--", part)]
    folder.mkdir(parents=True, exist_ok=True)
    command = ["git", "archive", "--format=tar", commit, "--", *listed]
    archive = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")


def own_environment(root: Path) -> dict[str, str]:
    """Return the variables for programs of a checkout: its benchmarks, and no other environment.

    They measure under any load: each other's runs are a part of it, and only ratios count.
    """
    left_out = ("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT")
    variables = {name: value for name, value in os.environ.items() if name not in left_out}
    own = {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", MAX_LOAD_VARIABLE: "inf"}
    return variables | own


def default_cache() -> Path:
    """Where exported commits are kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "specdecode" / "bench-base"


def git(*arguments: str) -> str:
    """Run git in this checkout and return what it prints."""
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()
