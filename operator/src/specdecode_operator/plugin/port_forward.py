"""A port of this machine that kubectl forwards to an engine pod; to another one if that ends."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from specdecode_api import names
from specdecode_operator.plugin.engine_pod import EnginePod
from specdecode_operator.plugin.errors import PluginError, forward_error

LISTENS = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) -> ")
ADDRESS = "127.0.0.1"
END_S = 5.0
SHORT_S = 5.0
MOST_SHORT = 5
"""After so many forwards in a row that end within SHORT_S, another one would end as well."""

Find = Callable[[str | None], EnginePod]
"""Returns a ready pod, preferably another one than that named; raises `PluginError`."""


class PortForward:
    """A port of 127.0.0.1 that stays the same while pods come and go.

    Args:
        find: chooses the pod.
        flags: of kubectl, for the cluster.
        port: 0 for a free one.
    """

    def __init__(self, find: Find, flags: Sequence[str], port: int) -> None:
        self._find = find
        self._flags = flags
        self.port = port
        self._pod: EnginePod | None = None
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._lines = deque[str](maxlen=10)
        self._started_s = 0.0
        self._short = 0

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.port}"

    @property
    def pod(self) -> EnginePod:
        assert self._pod is not None
        return self._pod

    def open(self) -> None:
        """Forward to a pod, after the forward before has ended.

        Raises:
            PluginError: no pod is ready, or kubectl does not forward to it.
        """
        self._pod = self._find(None if self._pod is None else self._pod.name)
        self._started_s = time.monotonic()
        self._process = _start(self._pod, self._flags, self.port)
        self._lines.clear()
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if (found := LISTENS.search(line)) is not None:
                self.port = int(found[1])
                # kubectl writes a line for each connection, and would wait if nobody read them.
                read = (self._lines, self._process.stdout)
                self._reader = threading.Thread(target=_keep_last, args=read, daemon=True)
                self._reader.start()
                return
            self._lines.append(line)
        self._process.stdout.close()
        self._process.wait()
        raise self._error()

    def renew(self) -> bool:
        """Forward to a ready pod if the forward has ended; returns whether it had.

        Raises:
            PluginError: as `open`, or every forward ends at once.
        """
        if not self.wait(0):
            if self._listens():
                return False
            self.close()  # it is about to end
        lasted_s = time.monotonic() - self._started_s
        self._short = self._short + 1 if lasted_s < SHORT_S else 0
        if self._short == MOST_SHORT:
            raise self._error()
        self.open()
        return True

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the forward ends; returns whether it has."""
        assert self._process is not None
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        if self._reader is not None:
            self._reader.join(END_S)  # its last lines are read
        return True

    def _listens(self) -> bool:
        """Whether the port is in use; a connection would reach the pod."""
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((ADDRESS, self.port))
            except OSError:
                return True
        return False

    def close(self) -> None:
        """End kubectl, if it runs."""
        if self._process is not None:
            self._process.terminate()
            if not self.wait(END_S):
                self._process.kill()
                self._process.wait()

    def _error(self) -> PluginError:
        return forward_error([*self._lines], self.pod.name, self.port)


@contextmanager
def forwarded(find: Find, flags: Sequence[str], port: int = 0) -> Iterator[PortForward]:
    """Forward a port while the body runs; ends kubectl also if this process is terminated.

    Raises:
        PluginError: as `PortForward.open`.
    """

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    before = {each: signal.signal(each, end) for each in (signal.SIGTERM, signal.SIGHUP)}
    try:
        forward = PortForward(find, flags, port)
        try:
            forward.open()
            yield forward
        finally:
            forward.close()
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _keep_last(lines: deque[str], stream: IO[str]) -> None:
    with stream:
        lines.extend(stream)


def _start(pod: EnginePod, flags: Sequence[str], port: int) -> "subprocess.Popen[str]":
    program = shutil.which("kubectl")
    if program is None:
        raise PluginError("kubectl is not in PATH, and forwards the port; install it")
    ports = f"{port or ''}:{pod.port}"
    command = (program, "port-forward", f"pod/{pod.name}", ports, "--address", ADDRESS)
    environment = {**os.environ}
    environment.pop(names.VARIABLE_API_KEY, None)
    return subprocess.Popen(
        [*command, "--namespace", pod.namespace, *flags],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
        # A session of its own: Ctrl-C stops an answer of a chat, not the forward.
        start_new_session=True,
    )
