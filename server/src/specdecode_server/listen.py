"""Listening sockets."""

import socket

_BACKLOG = 2048


class ListenError(Exception):
    """An address cannot be listened on; the message names it and the remedy."""


def listen(host: str, port: int, setting: str) -> socket.socket:
    """Return a listening socket; port 0 takes any free one.

    Args:
        setting: what sets the port, for the message of an error.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
    except (OSError, UnicodeError) as error:
        sock.close()
        reason = error.strerror if isinstance(error, OSError) else "it is not a host name"
        raise ListenError(
            f"cannot listen on {host} port {port}: {reason}; end the process "
            f"that uses the port, or choose another address or port with {setting}"
        ) from None
    return sock
