"""Download progress: written by the download threads, and served over HTTP meanwhile."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from specdecode_api import names
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


@contextmanager
def answering(port: int, progress: Callable[[], Progress]) -> Iterator[int]:
    """Serve the progress while the body runs, on the port where the engine listens afterwards.

    Yields the port, a free one for 0.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != names.PATH_PROGRESS:
                self.send_error(503, "models are being fetched")
                return
            body = progress().model_dump_json(exclude_none=True).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Keep the log for the downloads."""

    with ThreadingHTTPServer(("", port), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.daemon = True
        thread.start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()
            thread.join()
