"""A server that a chat starts for a model, and ends with itself."""

import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from specdecode_api.terminal_chat.api_client import ChatError

READY = re.compile(r"ready in .*?: (http://\S+/v1)\b")
END_S = 60.0


@contextmanager
def serving(model: str, flags: Sequence[str]) -> Iterator[str]:
    """Serve a model on a free port of the loopback address; yields the URL of its API.

    What it logs until it is ready is shown, later lines are not.

    Raises:
        ChatError: it has ended before it was ready.
    """
    command = (sys.executable, "-m", "specdecode_engine", "serve", model)
    ports = ("--host", "127.0.0.1", "--port", "0", "--management-port", "0")
    # A session of its own: Ctrl-C stops an answer, not the server.
    process = subprocess.Popen(
        [*command, *ports, *flags], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield _wait_ready(process)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_ready(process: "subprocess.Popen[str]") -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if (found := READY.search(line)) is not None:
            # A full pipe would stop the server: what follows is read and dropped.
            drop = deque[str](maxlen=0).extend
            threading.Thread(target=drop, args=(process.stderr,), daemon=True).start()
            return found[1]
        sys.stderr.write(line)
        sys.stderr.flush()
    raise ChatError(f"the server has ended with status {process.wait()} before it was ready")
