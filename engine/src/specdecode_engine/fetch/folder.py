"""One model in the cache: a folder per commit, complete exactly when its marker is there.

CACHE/hf/ORG/NAME/COMMIT/config.json …      checked files, moved here whole
CACHE/hf/ORG/NAME/COMMIT/.partial/…         files in the middle of their download
CACHE/hf/ORG/NAME/COMMIT/.complete.json     names and sizes, written last
CACHE/hf/ORG/NAME/COMMIT.lock               held by the one that downloads
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from specdecode_engine.fetch.hub import HubFile

_MARKER = ".complete.json"
_PARTIAL = ".partial"


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """The cache folder of one commit of a repository."""

    path: Path

    @classmethod
    def of(cls, cache: Path, repository: str, commit: str) -> "ModelFolder":
        """Return the folder without creating it."""
        return cls(cache / "hf" / repository / commit)

    def final(self, name: str) -> Path:
        """Path of a file after its check."""
        return self.path / name

    def partial(self, name: str) -> Path:
        """Path of a file during its download."""
        return self.path / _PARTIAL / name

    def complete_bytes(self) -> int | None:
        """Size of the complete model; None if a file is missing or has another size."""
        try:
            sizes: dict[str, int] = json.loads(self.final(_MARKER).read_text())
            present = all(self.final(name).stat().st_size == sizes[name] for name in sizes)
        except (OSError, ValueError):
            return None
        return sum(sizes.values()) if present else None

    def present_bytes(self, file: HubFile) -> int:
        """Bytes of a file that are on disk, checked or not."""
        for path in (self.final(file.name), self.partial(file.name)):
            if path.exists():
                return min(path.stat().st_size, file.bytes)
        return 0

    def missing_bytes(self, files: Sequence[HubFile]) -> int:
        return sum(file.bytes - self.present_bytes(file) for file in files)

    def free_bytes(self) -> int:
        return shutil.disk_usage(self.path).free

    def open(self) -> None:
        self.partial("").mkdir(parents=True, exist_ok=True)

    def finish(self, files: Sequence[HubFile]) -> None:
        """Mark the model as complete."""
        shutil.rmtree(self.path / _PARTIAL, ignore_errors=True)
        draft = self.final(_MARKER + ".new")
        draft.write_text(json.dumps({file.name: file.bytes for file in files}))
        os.replace(draft, self.final(_MARKER))

    @contextmanager
    def held(self, on_wait: Callable[[], None]) -> Iterator[None]:
        """Hold the lock; call `on_wait` if another process has it.

        The lock is released when its process ends. On a file system without locks, two downloads
        may corrupt each other's files; the check of every file detects that.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.with_name(f"{self.path.name}.lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def link(place: Path, folder: ModelFolder) -> None:
    """Link `place` to the folder; an existing link is replaced."""
    place.parent.mkdir(parents=True, exist_ok=True)
    new = place.with_name(f".{place.name}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(folder.path)
    os.replace(new, place)
