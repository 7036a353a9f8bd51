"""The Unix socket through which `specdecode-engine drain` and `undrain` reach a running engine.

A client sends one line of JSON, `{"command": "drain"}` or `{"command": "undrain"}`. The engine
answers with one line: `{"status": "draining" | "serving", "running_requests": n}` or
`{"error": text}`. After `drain` it keeps the connection and sends `{"status": "ended"}` when it
stops.

Whoever can open the socket can drain the engine: it has mode 0600, and the default folder 0700.
Standard library only, because a preStop hook waits for the import.
"""

import json
import os
import select
import socket
import stat
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

DRAIN = "drain"
UNDRAIN = "undrain"
MAX_LINE_BYTES = 4096
MAX_PATH_BYTES = 107
"""The kernel's limit, of `sun_path`."""
CONNECT_SECONDS = 2.0
REPLY_SECONDS = 5.0

_BACKLOG = 16
_FOLDER_MODE, _SOCKET_MODE = 0o700, 0o600


class DrainSocketError(Exception):
    """The socket cannot be created, or no engine answers on it."""


class NoAnswer(DrainSocketError):
    """An engine accepted the connection and did not answer."""


def default_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of sockets whose path is not configured; it may not exist.

    Raises:
        DrainSocketError: there is no folder for temporary files.
    """
    if base := environment.get("XDG_RUNTIME_DIR"):
        return Path(base) / "specdecode"
    try:
        return Path(tempfile.gettempdir()) / f"specdecode-{os.getuid()}"
    except OSError as error:
        raise DrainSocketError(
            f"no folder for the drain socket: {error}; name a path with --drain-socket"
        ) from None


@dataclass(frozen=True, slots=True)
class DrainListener:
    """A listening socket and the identity of its file, which `close` removes."""

    path: Path
    sock: socket.socket
    file: tuple[int, int]

    def close(self) -> None:
        """Close the socket and remove its file, unless another process has replaced the file."""
        with suppress(OSError):
            if _identity(self.path) == self.file:
                self.path.unlink()
        self.sock.close()


def listen(configured: str | None, host: str, port: int) -> DrainListener:
    """Listen at the configured path, or at HOST-PORT.sock in the default folder.

    The file of an engine that was killed is replaced.

    Raises:
        DrainSocketError: the path is too long, in use by another engine, or cannot be written.
    """
    if configured is not None:
        path = Path(configured)
    else:
        path = _prepare(default_folder()) / f"{host}-{port}.sock"
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise DrainSocketError(
            f"the path of the drain socket has {len(os.fsencode(path))} bytes; the limit is "
            f"{MAX_PATH_BYTES}: {path}; name a shorter one with --drain-socket"
        )
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(str(path))
        path.chmod(_SOCKET_MODE)
        sock.listen(_BACKLOG)
        return DrainListener(path, sock, _identity(path))
    except OSError as error:
        sock.close()
        raise DrainSocketError(
            f"cannot create the drain socket {path}: {error.strerror}; name a path in a writable "
            "folder with --drain-socket"
        ) from None


def _prepare(folder: Path) -> Path:
    """Create the folder, or check that no other user can write to it."""
    try:
        folder.mkdir(_FOLDER_MODE, exist_ok=True)
        found = folder.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
            folder.chmod(_FOLDER_MODE)
            return folder
    except OSError as error:
        reason = f"{error.strerror}; "
    else:
        reason = "it belongs to another user, or is not a folder; "
    raise DrainSocketError(
        f"cannot use {folder} for the drain socket: {reason}remove it, or name another path with "
        "--drain-socket"
    )


def _remove_stale(path: Path) -> None:
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return
    if not is_socket:
        raise DrainSocketError(
            f"the drain socket {path} exists and is not a socket; remove the file, or name another "
            "path with --drain-socket"
        )
    if is_listening(path):
        raise DrainSocketError(
            f"another engine listens on the drain socket {path}; stop it, or name another path "
            "with --drain-socket"
        )
    with suppress(OSError):
        path.unlink()


def is_listening(path: Path) -> bool:
    """Whether a process listens on a socket; a file that a killed process left is refused."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(CONNECT_SECONDS)
        try:
            sock.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
    return True


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino


def find_socket() -> Path:
    """Return the socket of the only engine of this user that runs on this machine.

    Raises:
        DrainSocketError: there is none, or there are several.
    """
    folder = default_folder()
    running = sorted(filter(is_listening, folder.glob("*.sock")))
    if not running:
        raise DrainSocketError(
            f"no engine is running: nothing listens on a socket in {folder}; run this as the "
            "engine's user, or name the engine's drain socket with --socket"
        )
    if len(running) > 1:
        raise DrainSocketError(
            f"{len(running)} engines are running: {', '.join(map(str, running))}; name one of "
            "these with --socket"
        )
    return running[0]


class DrainClient:
    """A connection to an engine's drain socket.

    Raises:
        DrainSocketError: nothing listens on the path, or it may not be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.settimeout(CONNECT_SECONDS)
        try:
            self._sock.connect(str(path))
        except OSError as error:
            self._sock.close()
            raise DrainSocketError(
                f"no engine answers on {path}: {error.strerror or error}; start the engine, or "
                "name its drain socket with --socket"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._sock.close()

    def send(self, command: str) -> dict[str, Any]:
        """Send a command and return the engine's answer.

        Raises:
            NoAnswer: there is no valid answer in `REPLY_SECONDS`.
            DrainSocketError: the engine refuses the command.
        """
        try:
            self._sock.sendall(json.dumps({"command": command}).encode() + b"\n")
            reply = json.loads(self._read_line(time.monotonic() + REPLY_SECONDS))
            if not isinstance(reply, dict):
                raise ValueError(f"it sent {reply!r}")
        except (OSError, ValueError) as error:
            raise NoAnswer(f"the engine on {self._path} does not answer: {error}") from None
        if "error" in reply:
            raise DrainSocketError(str(reply["error"]))
        return reply

    def wait_for_end(self, timeout_s: float) -> bool:
        """Wait until the engine stops or the time is over; return whether it stopped."""
        readable, _, _ = select.select([self._sock], [], [], max(timeout_s, 0.0))
        return bool(readable)

    def _read_line(self, deadline_s: float) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            self._sock.settimeout(max(deadline_s - time.monotonic(), 0.001))
            part = self._sock.recv(MAX_LINE_BYTES)
            if not part:
                raise ConnectionError("it closed the connection")
            line += part
        return line
