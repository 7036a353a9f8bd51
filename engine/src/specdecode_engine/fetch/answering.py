"""Serves the download progress, on the port where the engine listens afterwards."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from specdecode_api import names
from specdecode_api.report import Progress


@contextmanager
def answering(port: int, progress: Callable[[], Progress]) -> Iterator[int]:
    """Serve while the body runs; yields the port, a free one for 0."""

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
