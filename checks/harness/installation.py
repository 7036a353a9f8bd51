"""Virtual environments of the peers, outside the repository, from locked lists of packages.

An environment's folder is named by its lock's hash: another lock is another environment, and what
is there is not asked for again.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

LOCKS = Path(__file__).resolve().parent / "locks"
_DONE = "installed"
INSTALL_TIMEOUT_S = 900


class PeerUnavailable(Exception):
    """A peer cannot be installed here; the message has the reason."""


def ensure_environment(lock: Path, cache: Path | None = None) -> Path:
    """Install what the lock lists, unless it is there; return the environment's Python.

    Raises:
        PeerUnavailable: the lock is not there, uv is missing, or a package could not be fetched.
    """
    folder = environment_folder(lock, cache)
    python = folder / "bin" / "python"
    if (folder / _DONE).exists():
        return python
    print(f"installing {lock.stem} into {folder}", file=sys.stderr, flush=True)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    run_installer("uv", "venv", "--quiet", "--clear", "--python", version, str(folder))
    options = (
        "--quiet",
        "--no-build",
        "--no-deps",
        "--require-hashes",
        "--requirements",
        str(lock),
    )
    run_installer("uv", "pip", "install", "--python", str(python), *options)
    (folder / _DONE).write_text(lock.name)
    return python


def site_packages(python: Path) -> Path:
    """Return the folder that an environment's Python imports from."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return python.parents[1] / "lib" / version / "site-packages"


def environment_folder(lock: Path, cache: Path | None = None) -> Path:
    """Return the folder of a lock's environment.

    Raises:
        PeerUnavailable: the lock is not there.
    """
    try:
        content = lock.read_bytes()
    except FileNotFoundError:
        raise PeerUnavailable(f"there is no lock {lock.name}; see checks/harness/locks") from None
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    key = hashlib.sha256(content + version.encode()).hexdigest()[:12]
    return (cache or default_cache()) / f"peers-{lock.stem}-{key}"


def default_cache() -> Path:
    """The cache folder of this project."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "specdecode"


def run_installer(*command: str, name: str = "", reason_line: int = -1) -> None:
    """Run a package manager's command.

    Args:
        name: of the command in errors; its first words where empty.
        reason_line: which line of its errors contains the reason.

    Raises:
        PeerUnavailable: the program is not there, took too long or failed.
    """
    name = name or " ".join(command[:3])
    try:
        subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S
        )
    except FileNotFoundError:
        raise PeerUnavailable(f"{command[0]} is not installed; run make setup") from None
    except subprocess.TimeoutExpired:
        raise PeerUnavailable(f"{name} took over {INSTALL_TIMEOUT_S} s") from None
    except subprocess.CalledProcessError as error:
        output = (error.stderr or "").strip().splitlines()
        reason = output[reason_line] if output else f"it ended with {error.returncode}"
        raise PeerUnavailable(f"{name}: {reason}") from None
