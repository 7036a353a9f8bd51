"""`python -m bench.gpu.carry`: fetch the wheels that a machine with torch and transformers lacks.

Versions are those of uv.lock. FlashInfer comes with what its import needs, without a compiler. What
travels is at most 64 MiB, code included, so more than that is an error.
"""

import argparse
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

from bench.gpu.carried import FOLDER

LOCK = Path(__file__).resolve().parents[2] / "uv.lock"
LOCKED = (
    "pydantic",
    "pydantic-core",
    "annotated-types",
    "typing-inspection",
    "typing-extensions",
    "pyyaml",
    "prometheus-client",
    "llguidance",
)
PEERS = (
    "flashinfer-python",
    "apache-tvm-ffi",
    "ninja",
    "nvidia-ml-py",
    "requests",
    "certifi",
    "charset-normalizer",
    "idna",
    "urllib3",
)
MOST_BYTES = 64 << 20
GLIBCS = (17, 24, 26, 27, 28, 31, 34, 35)
PLATFORMS = ("manylinux2014_x86_64", *(f"manylinux_2_{minor}_x86_64" for minor in GLIBCS))


def main() -> int:
    """Fetch them all; 1 if they are too many bytes."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="bench.gpu.carry")
    parser.add_argument("--python", default="3.12", help="the interpreter there")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--without-peers", action="store_true", help="leave FlashInfer out")
    options = parser.parse_args()
    shutil.rmtree(options.folder, ignore_errors=True)
    names = locked_versions(LOCKED if options.without_peers else (*LOCKED, *PEERS))
    subprocess.run(command(names, options.python, options.folder), check=True)
    wheels = sorted(options.folder.glob("*.whl"))
    for wheel in wheels:
        print(f"{wheel.stat().st_size / 2**20:7.2f} MiB  {wheel.name}")
    total = sum(wheel.stat().st_size for wheel in wheels)
    print(f"{total / 2**20:7.2f} MiB in {options.folder}, at most {MOST_BYTES >> 20}")
    return 1 if total > MOST_BYTES else 0


def locked_versions(names: Iterable[str]) -> list[str]:
    """Read the versions of what to fetch from the lock."""
    packages = tomllib.loads(LOCK.read_text())["package"]
    versions = {package["name"]: package.get("version") for package in packages}
    return [f"{name}=={versions[name]}" for name in names]


def command(names: list[str], python: str, folder: Path) -> list[str]:
    """Return the command that fetches: pip, which uv runs where it is not installed."""
    return [
        *("uv", "tool", "run", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--only-binary=:all:", "--implementation", "cp"),
        *("--python-version", python, "--dest", str(folder)),
        *(word for name in PLATFORMS for word in ("--platform", name)),
        *names,
    ]


if __name__ == "__main__":
    sys.exit(main())
