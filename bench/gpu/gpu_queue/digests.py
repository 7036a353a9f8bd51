"""Digests of the files and folders that an entry depends on."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

GENERATED = ("__pycache__",)


def digests_of(root: Path, names: Iterable[str]) -> dict[str, str]:
    """Return a SHA-256 for each name; that of a folder changes with any file in it.

    Raises:
        FileNotFoundError: a name is neither a file nor a folder.
    """
    return {name: _digest(root / name) for name in names}


def changed(measured: Mapping[str, str], present: Mapping[str, str]) -> list[str]:
    """Name what differs, or is in one of both alone."""
    names = sorted(measured.keys() | present.keys())
    return [name for name in names if measured.get(name) != present.get(name)]


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    for file in [path] if path.is_file() else sorted(_files(path)):
        name = "" if file == path else file.relative_to(path).as_posix()
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        digest.update(f"{name}\0{content}\n".encode())
    return digest.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        raise FileNotFoundError(folder)
    for file in folder.rglob("*"):
        if file.is_file() and not set(GENERATED) & set(file.relative_to(folder).parts):
            yield file
