"""Downloads one model into the cache: resumes partial files and checks every file.

The cache has a folder per commit, which every pod and deployment that names the commit shares. It
is complete exactly when its marker is there.

CACHE/hf/ORG/NAME/COMMIT/config.json …      checked files, moved here whole
CACHE/hf/ORG/NAME/COMMIT/.partial/…         files in the middle of their download
CACHE/hf/ORG/NAME/COMMIT/.complete.json     names and sizes, written last
CACHE/hf/ORG/NAME/COMMIT.lock               held by the one that downloads
"""

import fcntl
import hashlib
import json
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

from specdecode_api.model_uri import HubLocation
from specdecode_api.report import ModelRole, ModelState, TerminationReason
from specdecode_engine.fetch.hub import (
    FetchError,
    Hub,
    HubFile,
    Snapshot,
    explained,
    needed,
    out_of_space,
)
from specdecode_engine.fetch.progress import Counts

log = logging.getLogger(__name__)

STREAMS = 4  # concurrent downloads: one connection rarely saturates the network
_MARKER = ".complete.json"
_PARTIAL = ".partial"


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """The cache folder of one commit: `final` files after their check, `partial` ones before."""

    path: Path

    @classmethod
    def of(cls, cache: Path, repository: str, commit: str) -> "ModelFolder":
        """Return the folder without creating it."""
        return cls(cache / "hf" / repository / commit)

    def final(self, name: str) -> Path:
        return self.path / name

    def partial(self, name: str) -> Path:
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


class _Cancelled(Exception):
    """Another file of the model failed."""


@dataclass(frozen=True, slots=True)
class Download:
    """The download of one model into the cache."""

    role: ModelRole
    uri: str
    location: HubLocation
    cache: Path
    hub: Hub
    counts: Counts
    cancelled: threading.Event = field(default_factory=threading.Event)

    def run(self) -> ModelFolder:
        """Return the folder of the complete model, or raise `FetchError`.

        A complete model that is named by its commit needs no request. Downloaded bytes are kept for
        the next attempt.
        """
        with explained(self.uri, has_token=False):
            return self._known() or self._fetched()

    def check(self) -> None:
        """Raise `FetchError` unless the model is complete, or the hub lists its files."""
        if self._known() is None:
            needed(self.hub.snapshot(self.location, self.uri).files, self.uri)

    def _known(self) -> ModelFolder | None:
        if not self.location.is_pinned:
            return None
        commit = self.location.revision
        folder = ModelFolder.of(self.cache, self.location.repository, commit)
        total = folder.complete_bytes()
        return None if total is None else self._ready(folder, commit, total)

    def _fetched(self) -> ModelFolder:
        snapshot = self.hub.snapshot(self.location, self.uri)
        files = needed(snapshot.files, self.uri)
        folder = ModelFolder.of(self.cache, snapshot.repository, snapshot.commit)
        total = sum(file.bytes for file in files)
        self.counts.begin(self.role, snapshot.commit, total, {})
        with folder.held(lambda: self.counts.move(self.role, ModelState.WAITING)):
            if folder.complete_bytes() is None:
                self._complete(folder, snapshot, files)
        return self._ready(folder, snapshot.commit, total)

    def _ready(self, folder: ModelFolder, commit: str, total: int) -> ModelFolder:
        self.counts.begin(self.role, commit, total, {"": total})
        self.counts.move(self.role, ModelState.READY)
        return folder

    def _complete(
        self, folder: ModelFolder, snapshot: Snapshot, files: tuple[HubFile, ...]
    ) -> None:
        folder.open()
        present = {file.name: folder.present_bytes(file) for file in files}
        total = sum(file.bytes for file in files)
        self.counts.begin(self.role, snapshot.commit, total, present)
        self.counts.move(self.role, ModelState.DOWNLOADING)
        missing, free = total - sum(present.values()), shutil.disk_usage(folder.path).free
        if missing > free:
            raise out_of_space(
                self.uri, f"needs {missing} bytes more, and the volume has {free} bytes left"
            )
        with ThreadPoolExecutor(STREAMS) as pool:
            tasks = [pool.submit(self._file, folder, snapshot, file) for file in files]
            wait(tasks, return_when=FIRST_EXCEPTION)
            self.cancelled.set()  # no effect unless one of them failed
            pool.shutdown(cancel_futures=True)
        for task in tasks:
            error = None if task.cancelled() else task.exception()
            if error is not None and not isinstance(error, _Cancelled):
                raise error
        folder.finish(files)

    def _file(self, folder: ModelFolder, snapshot: Snapshot, file: HubFile) -> None:
        """Download and check one file; a corrupted file is downloaded again in full, once."""
        final, partial = folder.final(file.name), folder.partial(file.name)
        if final.exists() and final.stat().st_size == file.bytes:
            return
        final.unlink(missing_ok=True)
        for _ in range(2):
            self._stream(partial, snapshot, file)
            if is_sound(partial, file):
                os.replace(partial, final)
                log.info("%s: %s is complete and checked", self.role, file.name)
                return
            log.warning("%s: %s has another content than announced", self.role, file.name)
            partial.unlink()
        problem = f"{file.name} came with another content than the hub announces, twice"
        remedy = "look for a proxy or a mirror that changes files"
        raise FetchError(TerminationReason.CHECKSUM_MISMATCH, self.uri, f"{problem}; {remedy}")

    def _stream(self, partial: Path, snapshot: Snapshot, file: HubFile) -> None:
        offset = partial.stat().st_size if partial.exists() else 0
        if offset > file.bytes:
            partial.unlink()
            offset = 0
        with _Counted(partial, self, file.name) as into:
            into.seek(offset)
            self.hub.stream(snapshot, file, into, offset, self.uri)


class _Counted(FileIO):
    """A file that reports its size, and raises on writes after the download is cancelled."""

    def __init__(self, path: Path, download: Download, name: str) -> None:
        super().__init__(path, "r+b" if path.exists() else "w+b")
        self._download = download
        self._name = name

    def write(self, data: Any) -> int:
        if self._download.cancelled.is_set():
            raise _Cancelled
        view = memoryview(data)
        while view:
            view = view[super().write(view) :]
        self._download.counts.set_bytes(self._download.role, self._name, self.tell())
        return len(data)


def is_sound(path: Path, file: HubFile) -> bool:
    """Whether a file has the size and the content that the hub announced."""
    if path.stat().st_size != file.bytes:
        return False
    # The id that git gives a file: https://git-scm.com/book/en/v2/Git-Internals-Git-Objects
    head = f"blob {file.bytes}\0".encode()
    announced = file.sha256 or file.git_id
    with path.open("rb") as opened:
        digest = hashlib.file_digest(
            opened, "sha256" if file.sha256 else lambda: hashlib.sha1(head, usedforsecurity=False)
        )
    return announced in (None, digest.hexdigest())
