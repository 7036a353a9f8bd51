"""Which commit a checkout is of, also where it travelled without its history, and what it runs on.

`make gpu-carry` writes the commit with the hash of every tracked file. A checkout whose files have
these hashes is of that commit, whatever else is known of it.
"""

import hashlib
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

MANIFEST = "checkout.json"
CHANGED = "+"
"""After a commit: tracked files differ from it."""
UNKNOWN = "unknown"
MARKS = "bench/gpu/queue-marks.json"
"""Written after runs; it changes nothing that is measured."""
VERSIONED = "engine/pyproject.toml"
PACKAGES = ("torch", "triton", "transformers", "numpy", "flashinfer-python")


@dataclass(frozen=True, slots=True)
class Manifest:
    """A commit and the git hashes of its files."""

    commit: str
    files: Mapping[str, str]

    def is_of(self, root: Path) -> bool:
        """Whether all files of the commit, and no others in their place, are in a checkout."""
        return all(blob_hash(root / name) == known for name, known in self.files.items())


def commit_of(root: Path, carry: Path) -> str:
    """Return the commit of a checkout, followed by `+` where tracked files differ from it.

    Args:
        root: the checkout.
        carry: folder in which the manifest may lie.
    """
    manifest = read_manifest(carry)
    if manifest is not None and manifest.is_of(root):
        return manifest.commit
    if (described := _described(root)) is not None:
        return described
    return UNKNOWN if manifest is None else manifest.commit + CHANGED


def read_manifest(carry: Path) -> Manifest | None:
    """Read what was carried; None without it."""
    file = carry / MANIFEST
    if not file.exists():
        return None
    document = json.loads(file.read_text())
    return Manifest(document["commit"], document["files"])


def write_manifest(root: Path, carry: Path) -> Manifest:
    """Write the manifest of the commit that is checked out; changed files are not a part of it.

    Raises:
        subprocess.CalledProcessError: the folder is not a checkout.
    """
    manifest = Manifest(git(root, "rev-parse", "HEAD").strip(), dict(_tracked(root)))
    document = {"commit": manifest.commit, "files": manifest.files}
    (carry / MANIFEST).write_text(json.dumps(document, indent=1) + "\n")
    return manifest


def blob_hash(file: Path) -> str | None:
    """Return the hash under which git keeps the content of a file; None without the file."""
    if not file.is_file():
        return None
    content = file.read_bytes()
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


def git(root: Path, *arguments: str) -> str:
    """Run git in a checkout and return what it prints."""
    command = ("git", "-C", str(root), *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that figures depend on."""
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def project_version(root: Path) -> str:
    """Return the version of this project; empty in a checkout without one."""
    file = root / VERSIONED
    return str(tomllib.loads(file.read_text())["project"]["version"]) if file.exists() else ""


def _tracked(root: Path) -> Iterator[tuple[str, str]]:
    for line in git(root, "ls-tree", "-r", "-z", "HEAD").split("\0"):
        about, _, name = line.partition("\t")
        if about.startswith("100") and name != MARKS:  # files, not links and submodules
            yield name, about.split()[2]


def _described(root: Path) -> str | None:
    status = ("status", "--porcelain", "--untracked-files=no", "--", ".", f":(exclude){MARKS}")
    try:
        commit, changes = git(root, "rev-parse", "HEAD").strip(), git(root, *status)
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + CHANGED if changes.strip() else commit
