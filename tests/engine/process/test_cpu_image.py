"""An engine on a CPU runs without the libraries that its image leaves out."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory

import pytest

from checks.request_trace.__main__ import free_port

ROOT = Path(__file__).resolve().parents[3]
DOCKERFILE = ROOT / "engine" / "Dockerfile"
SEED, CASES = "17", "4"


def left_out(argument: str) -> list[str]:
    found = re.search(rf'^ARG {argument}="([^"]+)"$', DOCKERFILE.read_text(), re.MULTILINE)
    assert found
    return found[1].split()


PACKAGES = left_out("NOT_ON_CPUS")


@pytest.fixture(scope="module")
def environment() -> Iterator[Path]:
    """This environment by hard links, without what the image leaves out."""
    (ROOT / ".pytest_cache").mkdir(exist_ok=True)
    with TemporaryDirectory(dir=ROOT / ".pytest_cache") as place:
        copy = Path(place) / "environment"
        subprocess.run(["cp", "--archive", "--link", sys.prefix, copy], check=True)
        packages = next(copy.glob("lib/python3*/site-packages"))
        for package in PACKAGES:
            files = Distribution.from_name(package).files
            assert files, package
            for file in files:
                (packages / file).unlink(missing_ok=True)
            for folder in {file.parts[0] for file in files} - {"nvidia", ".."}:
                rmtree(packages / folder, ignore_errors=True)  # compiled bytecode
        for part in left_out("NOT_ON_CPUS_OF_CUDNN"):
            (library,) = packages.glob(f"nvidia/cudnn/lib/libcudnn_{part}.so.*")
            library.unlink()
        yield copy


def run(environment: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [str(environment / "bin" / "python"), *arguments]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def test_an_engine_is_lossless_without_libraries_for_gpus(environment: Path) -> None:
    ended = run(environment, "-m", "checks.lossless", "--cases", CASES, "--seed", SEED)
    assert ended.returncode == 0, ended.stderr[-2000:]
    figures = json.loads(ended.stdout.splitlines()[-1])
    assert (figures["cases"], figures["mismatches"]) == (int(CASES), 0)


def test_an_import_of_what_is_left_out_names_it(environment: Path) -> None:
    ended = run(environment, "-c", "import triton.language")
    assert ended.returncode == 1
    assert "ModuleNotFoundError: No module named 'triton" in ended.stderr


def test_a_backend_that_is_left_out_is_refused_by_name(environment: Path) -> None:
    target = ROOT / "examples" / "models" / "target"
    where = ("--host", "127.0.0.1", "--port", str(free_port()))
    flags = (*where, "--device", "cpu", "--attention-backend", "triton")
    ended = run(environment, "-m", "specdecode_engine", "serve", str(target), *flags)
    assert ended.returncode != 0
    assert "triton is not installed" in ended.stderr
