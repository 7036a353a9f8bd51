"""What one entry left: a JSON file of its own, replaced as a whole."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from bench.gpu.gpu_queue.entries import Base, QueueError
from bench.gpu.report import replace_file

SUFFIX = ".entry.json"


class Status(StrEnum):
    """How an entry ended."""

    DONE = "done"
    FAILED = "failed"  # with an exit status
    KILLED = "killed"  # by a signal that the queue did not send, such as for memory
    TIMED_OUT = "timed out"
    INTERRUPTED = "interrupted"  # the whole run was


class EntryResult(BaseModel):
    """One run of an entry. `reports` are those that its command wrote, by side: new and base."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    entry: str
    status: Status
    reason: str
    seconds: float
    exit_code: int | None
    commit: str
    base: Base | None
    date: str  # ISO
    card: str
    is_dry: bool
    versions: dict[str, str]
    command: list[str]
    files: dict[str, str]  # digests
    reports: dict[str, Any]
    tail: str  # of what it printed

    @property
    def file_name(self) -> str:
        """Name of its file within the folder of a run."""
        return f"{self.entry}{SUFFIX}"


def write_result(folder: Path, result: EntryResult) -> Path:
    """Write the file of an entry, or replace it; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / result.file_name
    replace_file(file, json.dumps(result.model_dump(mode="json"), indent=1) + "\n")
    return file


def has_report(folder: Path, name: str) -> bool:
    """Whether an entry has left a report there, complete or not."""
    file = folder / f"{name}{SUFFIX}"
    try:
        return bool(EntryResult.model_validate_json(file.read_bytes()).reports)
    except (FileNotFoundError, ValidationError):
        return False


def read_results(folder: Path) -> dict[Path, EntryResult]:
    """Read the results of a run by file.

    Raises:
        QueueError: there are none, or a file is malformed.
    """
    results = {}
    for file in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            results[file] = EntryResult.model_validate_json(file.read_bytes())
        except ValidationError as error:
            raise QueueError(f"{file}: not a result of the queue: {error}") from error
    if not results:
        raise QueueError(f"{folder}: contains no results (*{SUFFIX}); name the OUT of a run")
    return results
