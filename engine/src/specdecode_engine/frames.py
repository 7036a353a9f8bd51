"""Messages on a socket between two processes: bytes with their length before them."""

import socket
from collections.abc import Iterator

LENGTH_BYTES = 8


def framed(data: bytes) -> bytes:
    """Put the length before bytes."""
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


def send_frame(channel: socket.socket, data: bytes) -> None:
    """Send bytes with their length before them."""
    channel.sendall(framed(data))


def receive_frame(channel: socket.socket) -> bytes | None:
    """Return the next frame; None at the end of the connection."""
    head = _receive(channel, LENGTH_BYTES)
    return None if head is None else _receive(channel, int.from_bytes(head, "big"))


def _receive(channel: socket.socket, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        part = channel.recv(min(count - len(parts), 2**20))
        if not part:
            return None
        parts += part
    return bytes(parts)


def take_frames(received: bytearray) -> Iterator[bytes]:
    """Remove the complete frames from the beginning of what was received, and yield them."""
    while len(received) >= LENGTH_BYTES:
        end = LENGTH_BYTES + int.from_bytes(received[:LENGTH_BYTES], "big")
        if len(received) < end:
            return
        frame = bytes(received[LENGTH_BYTES:end])
        del received[:end]
        yield frame
