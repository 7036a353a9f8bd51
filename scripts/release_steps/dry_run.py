"""What a dry run has in place of the world: a registry and an `origin`."""

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.release_steps.commands import run
from scripts.release_steps.errors import ReleaseError

BRANCH = "main"

_START_TIMEOUT_S = 30


@contextmanager
def loopback_registry(programs: Path, folder: Path) -> Iterator[str]:
    """Run a registry on this machine that keeps its blobs in a folder; gives its address.

    Raises:
        ReleaseError: when it does not start.
    """
    log = folder / "registry.log"
    storage = folder / "registry"
    storage.mkdir()
    command: list[str | Path] = [
        programs / "crane",
        "registry",
        "serve",
        "--address",
        "127.0.0.1:0",
        "--disk",
        storage,
    ]
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        yield f"127.0.0.1:{_port(process, log)}"
    finally:
        process.terminate()
        process.wait()


def checkout_of_copy(root: Path, folder: Path) -> Path:
    """Copy the last commit into a bare repository, and clone that: its `origin` is the copy."""
    bare, checkout = folder / "origin.git", folder / "checkout"
    run(["git", "init", "--quiet", "--bare", "--initial-branch", BRANCH, bare])
    run(["git", "push", "--quiet", bare, f"HEAD:refs/heads/{BRANCH}"], directory=root)
    run(["git", "clone", "--quiet", bare, checkout])
    return checkout


def _port(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not (found := re.search(r"serving on port (\d+)\n", log.read_text())):
        if process.poll() is not None or time.monotonic() > deadline:
            raise ReleaseError(f"the registry does not start: {log.read_text()}")
        time.sleep(0.05)
    return found[1]
