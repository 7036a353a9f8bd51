"""How far the downloads are: counted by the threads that write, read by whoever asks."""

import logging
import threading
from dataclasses import dataclass, field

from specdecode_api.report import ModelReport, ModelState, Progress, Role

log = logging.getLogger(__name__)

_LOGGED_PARTS = 10


@dataclass(slots=True)
class _Model:
    role: Role
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

    def __init__(self, uris: dict[Role, str]) -> None:
        self._lock = threading.Lock()
        self._models = {role: _Model(role, uri) for role, uri in uris.items()}

    def begin(self, role: Role, revision: str, total: int, done: dict[str, int]) -> None:
        """Note what a model consists of, and what of it is on disk."""
        with self._lock:
            model = self._models[role]
            model.revision, model.total, model.done = revision, total, dict(done)

    def move(self, role: Role, state: ModelState) -> None:
        """Note a new state."""
        with self._lock:
            self._models[role].state = state
        log.info("%s: %s", role, state)

    def set_bytes(self, role: Role, file: str, count: int) -> None:
        """Note how many bytes of a file are on disk; a line in the log for every tenth."""
        with self._lock:
            model = self._models[role]
            model.done[file] = count
            done, total = sum(model.done.values()), model.total or 0
            part = _LOGGED_PARTS * done // total if total else 0
            is_news, model.logged = part > model.logged, max(part, model.logged)
        if is_news:
            log.info("%s: %d of %d bytes (%d %%)", role, done, total, 100 * done // total)

    def progress(self) -> Progress:
        """Tell everything, as of now."""
        with self._lock:
            return Progress(models=tuple(model.report() for model in self._models.values()))
