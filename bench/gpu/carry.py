"""`python -m bench.gpu.carry`: fetch what a machine with torch and transformers lacks.

That is wheels, the commit with the hashes of its files, and the older commits that entries of the
queue compare with. Versions are those of uv.lock. FlashInfer comes with what its import needs,
without a compiler. At most 64 MiB travel, checkout included, so more than that is an error.
"""

import argparse
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

from bench.gpu.carried import FOLDER
from bench.gpu.checkout import git, write_manifest
from bench.gpu.gpu_queue.bases import carry_base
from bench.gpu.gpu_queue.entries import read_queue

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "uv.lock"
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
    print(f"commit {write_manifest(ROOT, options.folder).commit}")
    for entry in read_queue(ROOT):
        if entry.base is not None:
            carry_base(entry.base.commit, options.folder)
    sizes = {part.name: size_of(part) for part in sorted(options.folder.iterdir())}
    sizes["the checkout"] = sum(size_of(ROOT / name) for name in travelling())
    for name, size in sizes.items():
        print(f"{size / 2**20:7.2f} MiB  {name}")
    total = sum(sizes.values())
    print(f"{total / 2**20:7.2f} MiB in all, at most {MOST_BYTES >> 20}")
    return 1 if total > MOST_BYTES else 0


def travelling() -> list[str]:
    """List the files of the checkout that are copied to another machine."""
    listed = git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


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
