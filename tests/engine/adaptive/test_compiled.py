"""What images compile of policy goodput decides as the pure modules do, to the last bit."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ENGINE = Path(__file__).parents[3] / "engine"
TRACE = Path(__file__).with_name("policy_trace.py")
BUILD_OPTIONS = {"HATCH_BUILD_HOOK_ENABLE_MYPYC": "1", "CC": "gcc -ffp-contract=off"}
REASONS = ("START", "RISE", "FALL", "PROBE", "KEEP", "LATENCY", "UNREACHABLE")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the engine's wheel as images do; return a folder with what it installs."""
    folder = tmp_path_factory.mktemp("engine")
    shutil.copy(ENGINE / "pyproject.toml", folder)
    no_caches = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ENGINE / "src", folder / "src", ignore=no_caches)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "wheels"],
        env=os.environ | BUILD_OPTIONS,
        cwd=folder,
        check=True,
    )
    (wheel,) = (folder / "wheels").iterdir()
    with ZipFile(wheel) as archive:
        archive.extractall(folder / "installed")
    return folder / "installed"


def _trace(seed: int, package: Path) -> tuple[list[str], list[str]]:
    """Return the files of the modules, and a line for each step."""
    printed = subprocess.run(
        [sys.executable, TRACE, str(seed)],
        env=os.environ | {"PYTHONPATH": str(package)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    files, *steps = printed.splitlines()
    return files.split(" "), steps


def test_compiled_modules_decide_as_pure_ones_do_to_the_last_bit(compiled: Path) -> None:
    lines: list[str] = []
    for seed in range(6):
        pure_files, pure = _trace(seed, ENGINE / "src")
        compiled_files, steps = _trace(seed, compiled)
        assert {Path(file).suffix for file in pure_files} == {".py"}
        assert {Path(file).suffix for file in compiled_files} == {".so"}
        assert steps == pure
        lines += steps
    assert [reason for reason in REASONS if not any(f"Reason.{reason}:" in e for e in lines)] == []
