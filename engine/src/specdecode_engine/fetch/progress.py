"""Download progress, written by the download threads and readable from any thread."""

import logging
import threading
from dataclasses import dataclass, field

from specdecode_api.report import ModelReport, ModelRole, ModelState, Progress

log = logging.getLogger(__name__)

_LOGGED_PARTS = 10


@dataclass(slots=True)
class _Model:
    role: ModelRole
    uri: str
    state: ModelState = ModelState.PENDING
    revision: str | None = None
    total: int | None = None
    done: dict[str, int] = field(default_factory=dict)  # file to bytes on disk
    logged: int = 0

    def report(self) -> ModelReport:
        return ModelReport(
            role=self.role,
            uri=self.uri,
            state=self.state,
            revision=self.revision,
            bytes_done=sum(self.done.values()),
            bytes_total=self.total,
        )


class Counts:
    """The state of every model that is fetched. Any thread may write or read."""

    def __init__(self, uris: dict[ModelRole, str]) -> None:
        self._lock = threading.Lock()
        self._models = {role: _Model(role, uri) for role, uri in uris.items()}

    def begin(self, role: ModelRole, revision: str, total: int, done: dict[str, int]) -> None:
        """Record the total size of a model and its bytes on disk."""
        with self._lock:
            model = self._models[role]
            model.revision, model.total, model.done = revision, total, dict(done)

    def move(self, role: ModelRole, state: ModelState) -> None:
        """Record and log a new state."""
        with self._lock:
            self._models[role].state = state
        log.info("%s: %s", role, state)

    def set_bytes(self, role: ModelRole, file: str, count: int) -> None:
        """Record the bytes of a file on disk; log every tenth of the model."""
        with self._lock:
            model = self._models[role]
            model.done[file] = count
            done, total = sum(model.done.values()), model.total or 0
            part = _LOGGED_PARTS * done // total if total else 0
            is_news, model.logged = part > model.logged, max(part, model.logged)
        if is_news:
            log.info("%s: %d of %d bytes (%d %%)", role, done, total, 100 * done // total)

    def progress(self) -> Progress:
        """Return the current progress of every model."""
        with self._lock:
            return Progress(models=tuple(model.report() for model in self._models.values()))
