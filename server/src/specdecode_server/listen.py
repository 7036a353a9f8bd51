"""Listening sockets."""

import errno
import socket

_BACKLOG = 2048


class ListenError(Exception):
    """An address cannot be listened on; the message names it and the remedy."""


def listen(host: str, port: int, setting: str, host_setting: str) -> socket.socket:
    """Return a listening socket; port 0 takes any free one.

    It names its protocol, without which asyncio, unlike uvloop, sets no TCP_NODELAY on connections:
    the body of an answer would wait for the acknowledgement of its head, for 40 ms on Linux.

    Args:
        setting: what sets the port, for the message of an error.
        host_setting: what sets the host, likewise.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
    except (OSError, UnicodeError) as error:
        sock.close()
        reason = error.strerror if isinstance(error, OSError) else "it is not a host name"
        remedy = _remedy(getattr(error, "errno", None), setting, host_setting)
        raise ListenError(f"cannot listen on {host} port {port}: {reason}; {remedy}") from None
    return sock


def _remedy(number: int | None, setting: str, host_setting: str) -> str:
    if number == errno.EADDRINUSE:
        return f"end the process that uses the port, or choose another one with {setting}"
    if number == errno.EACCES:
        return f"choose a port that this user may use, from 1024 on, with {setting}"
    return f"choose an address of this machine, such as 127.0.0.1, with {host_setting}"
