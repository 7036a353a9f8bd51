"""Marks of entries that have a result: commit, card, date, and what was measured.

They are committed next to the queue, so that every checkout knows what is due.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from bench.gpu.checkout import MARKS, project_version
from bench.gpu.gpu_queue.digests import changed, digests_of
from bench.gpu.gpu_queue.entries import Base, Entry, QueueError
from bench.gpu.report import replace_file


class Mark(BaseModel):
    """The last result of an entry."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    commit: str
    card: str
    date: str  # ISO
    command: list[str]
    base: Base | None
    files: dict[str, str]  # digests
    version: str = ""  # of this project
    is_complete: bool = True  # an entry alone may have a part of its result


Marks = Mapping[str, Mark]  # by name of the entry
_ADAPTER = TypeAdapter(dict[str, Mark])


def read_marks(root: Path) -> dict[str, Mark]:
    """Read the marks of a checkout.

    Raises:
        QueueError: the file is malformed.
    """
    try:
        return _ADAPTER.validate_json((root / MARKS).read_bytes())
    except ValidationError as error:
        raise QueueError(f"{MARKS}: {error}") from error


def write_marks(root: Path, marks: Marks) -> None:
    """Replace the file."""
    document = {name: marks[name].model_dump() for name in sorted(marks)}
    replace_file(root / MARKS, json.dumps(document, indent=1) + "\n")


def reason_due(
    entry: Entry, mark: Mark | None, digests: Mapping[str, str], version: str
) -> str | None:
    """Return why an entry is due, or None while its mark holds.

    Args:
        digests: those of the entry's files now.
        version: of this project.
    """
    if mark is None:
        return "no result yet"
    if entry.alone:
        minor = _minor(version)
        if _minor(mark.version) != minor:
            return f"no result of version {minor} yet"
        return None if mark.is_complete else "its result is incomplete"
    if (mark.command, mark.base) != (entry.command, entry.base):
        return "its command has changed"
    names = changed(mark.files, digests)
    return f"changed since: {', '.join(names)}" if names else None


def reasons_due(entries: Iterable[Entry], marks: Marks, root: Path) -> dict[str, str]:
    """Return why entries are due, by name, in the order of the queue."""
    version = project_version(root)
    reasons = (
        (one.name, reason_due(one, marks.get(one.name), digests_of(root, one.files), version))
        for one in entries
    )
    return {name: reason for name, reason in reasons if reason is not None}


def is_begun(mark: Mark | None, version: str) -> bool:
    """Whether a mark is an incomplete result of this minor version."""
    return mark is not None and not mark.is_complete and _minor(mark.version) == _minor(version)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
