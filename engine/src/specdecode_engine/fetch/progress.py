"""Download progress: written by the download threads, and served over HTTP meanwhile."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from specdecode_api import names
from specdecode_api.report import ModelReport, ModelRole, ModelState, Progress

log = logging.getLogger(__name__)

_LOGGED_PARTS = 10


class Counts:
    """The state of every model that is fetched. Any thread may write or read."""

    def __init__(self, uris: dict[ModelRole, str]) -> None:
        self._lock = threading.RLock()  # a handler of signals reads, too
        self._reports = {role: ModelReport(role=role, uri=uri) for role, uri in uris.items()}
        self._done: dict[ModelRole, dict[str, int]] = {}  # file to bytes on disk

    def begin(self, role: ModelRole, revision: str, total: int, done: dict[str, int]) -> None:
        """Record the total size of a model and its bytes on disk."""
        with self._lock:
            self._done[role] = dict(done)
            self._update(role, revision=revision, bytes_total=total, bytes_done=sum(done.values()))

    def move(self, role: ModelRole, state: ModelState) -> None:
        """Record and log a new state."""
        with self._lock:
            self._update(role, state=state)
        log.info("%s: %s", role, state)

    def set_bytes(self, role: ModelRole, file: str, count: int) -> None:
        """Record the bytes of a file on disk; log every tenth of the model."""
        with self._lock:
            before, total = self._reports[role].bytes_done, self._reports[role].bytes_total
            self._done[role][file] = count
            done = sum(self._done[role].values())
            self._update(role, bytes_done=done)
        if total and _LOGGED_PARTS * done // total > _LOGGED_PARTS * before // total:
            log.info("%s: %d of %d bytes (%d %%)", role, done, total, 100 * done // total)

    def progress(self) -> Progress:
        with self._lock:
            return Progress(models=tuple(self._reports.values()))

    def _update(self, role: ModelRole, **values: object) -> None:
        self._reports[role] = self._reports[role].model_copy(update=values)


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
