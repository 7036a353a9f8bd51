"""Logs of engines in one archive, as a run may have more of them than files come back."""

import os
from pathlib import Path
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile

FILE = "logs.zip"
MOST_BYTES = 4 << 20
"""Of one log, its end."""


def keep_log(log: Path, archive: Path) -> None:
    """Add a log, numbered; a kill at any time leaves the archive before or the new one.

    An archive that cannot be read is replaced.
    """
    if not log.exists():
        return
    kept = _contents(archive)
    kept[f"{len(kept):03d}-{log.name}"] = log.read_bytes()[-MOST_BYTES:]
    new = archive.with_suffix(".new")
    with ZipFile(new, "w", ZIP_DEFLATED) as file:
        for name, content in kept.items():
            file.writestr(name, content)
    os.replace(new, archive)


def _contents(archive: Path) -> dict[str, bytes]:
    try:
        with ZipFile(archive) as file:
            return {name: file.read(name) for name in file.namelist()}
    except (FileNotFoundError, BadZipFile):
        return {}
