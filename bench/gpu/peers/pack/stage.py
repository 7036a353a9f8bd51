"""Installs the pinned wheels of a peer into a folder, and removes what the run does not need."""

import shutil
import subprocess
from pathlib import Path

from bench.gpu.peers.pack.errors import PackError
from bench.gpu.peers.pack.fatbin import CutSizes, cut_images, run_program
from bench.gpu.peers.pack.recipes import Recipe

LOCKS = Path(__file__).resolve().parent
PYTHON, PLATFORM = "3.12", "x86_64-manylinux_2_35"
UNUSED = ("__pycache__", "*.pyi", "*.pyc", "*.a")


def stage(recipe: Recipe, folder: Path, lock: Path | None = None) -> None:
    """Install the wheels of a recipe's lock file into a new folder.

    Args:
        lock: by default the committed one.

    Raises:
        PackError: a wheel is missing, or its SHA-256 is not that of the lock file.
    """
    shutil.rmtree(folder, ignore_errors=True)
    command = [
        *("uv", "pip", "install", "--quiet", "--no-deps", "--require-hashes"),
        *("--only-binary", ":all:", "--link-mode", "copy"),  # files are changed afterwards
        *("--python-version", PYTHON, "--python-platform", PLATFORM),
        *("--target", str(folder), "-r", str(lock or lock_of(recipe.name))),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise PackError(f"{recipe.name}: {done.stderr.strip()}")


def lock_of(name: str) -> Path:
    """Return the lock file of a peer."""
    return LOCKS / f"{name}.lock"


def cut(recipe: Recipe, folder: Path) -> dict[str, CutSizes]:
    """Remove what is left out; return by shared object what was cut of it.

    Raises:
        PackError: a file that a recipe leaves out, cuts or strips is not there, or not of the known
            layout.
    """
    for name in (*recipe.left_out, *recipe.cut, *recipe.stripped):
        if not (folder / name).exists():
            raise PackError(f"{recipe.name}: {name} is not in its wheels; change its recipe")
    for path in [folder / name for name in recipe.left_out]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for pattern in UNUSED:
        for path in [*folder.rglob(pattern)]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    sizes = {name: cut_images(folder / name, wanted) for name, wanted in recipe.cut.items()}
    for name in recipe.stripped:
        run_program(["strip", "--strip-unneeded", str(folder / name)])
    return sizes
