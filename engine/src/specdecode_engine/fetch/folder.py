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

from specdecode_engine.fetch.files import HubFile

_MARKER = ".complete.json"
_PARTIAL = ".partial"


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """Where one commit of one repository lies."""

    path: Path

    @classmethod
    def of(cls, cache: Path, repository: str, commit: str) -> "ModelFolder":
        """Name the folder; nothing is created."""
        return cls(cache / "hf" / repository / commit)

    def final(self, name: str) -> Path:
        """Where a file lies once it is checked."""
        return self.path / name

    def partial(self, name: str) -> Path:
        """Where a file lies while it is downloaded."""
        return self.path / _PARTIAL / name

    def complete_bytes(self) -> int | None:
        """Size of the complete model, None where something is missing or of another size."""
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
        """Bytes that are not on disk."""
        return sum(file.bytes - self.present_bytes(file) for file in files)

    def free_bytes(self) -> int:
        """Bytes that can be written, as the file system says."""
        return shutil.disk_usage(self.path).free

    def open(self) -> None:
        """Create the folder."""
        self.partial("").mkdir(parents=True, exist_ok=True)

    def finish(self, files: Sequence[HubFile]) -> None:
        """Declare the model complete."""
        shutil.rmtree(self.path / _PARTIAL, ignore_errors=True)
        draft = self.final(_MARKER + ".new")
        draft.write_text(json.dumps({file.name: file.bytes for file in files}))
        os.replace(draft, self.final(_MARKER))

    @contextmanager
    def held(self, on_wait: Callable[[], None]) -> Iterator[None]:
        """Hold the lock; `on_wait` is called if somebody else has it.

        The lock goes with the process that holds it. Where a file system does not keep locks, two
        downloads may disturb each other; the check of every file finds that out.
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
    """Have `place` lead to the folder, whatever it led to before."""
    place.parent.mkdir(parents=True, exist_ok=True)
    new = place.with_name(f".{place.name}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(folder.path)
    os.replace(new, place)
