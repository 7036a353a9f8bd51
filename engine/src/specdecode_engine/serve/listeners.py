"""The sockets of an engine: API port, management port, and the Unix socket for draining."""

import logging
import socket
from dataclasses import dataclass
from typing import Self

from specdecode_api.boot import ServerBoot
from specdecode_engine import drain_socket
from specdecode_engine.drain_socket import DrainListener, DrainSocketError
from specdecode_server.listen import ListenError, listen

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Listeners:
    """The open sockets; `management` is None if one port serves everything."""

    api: socket.socket
    management: socket.socket | None
    drain: DrainListener

    @classmethod
    def open(cls, boot: ServerBoot) -> Self:
        """Listen on every address, or on none.

        Raises:
            ListenError: one of them is in use, is not an address of this host, or is not permitted.
        """
        api, management = _listen_http(boot)
        try:
            drain = drain_socket.listen(boot.drain_socket, *api.getsockname()[:2])
        except DrainSocketError as error:
            _close(api, management)
            raise ListenError(str(error)) from None
        listeners = cls(api, management, drain)
        listeners._log_addresses()
        return listeners

    @staticmethod
    def check(boot: ServerBoot) -> None:
        """Raise `ListenError` if one of the ports cannot be listened on now."""
        _close(*_listen_http(boot))

    @property
    def management_port(self) -> int | None:
        """The port of the management listener, if there is one."""
        return None if self.management is None else int(self.management.getsockname()[1])

    @property
    def http(self) -> list[socket.socket]:
        return [self.api] if self.management is None else [self.api, self.management]

    def _log_addresses(self) -> None:
        """Log every address, the API's first."""
        log.info("listening on %s port %d", *self.api.getsockname()[:2])
        if self.management is not None:
            log.info("management on %s port %d", *self.management.getsockname()[:2])
        log.info("drain socket: %s", self.drain.path)

    def close(self) -> None:
        """Close all sockets and remove the file of the Unix socket."""
        _close(*self.http)
        self.drain.close()


def _listen_http(boot: ServerBoot) -> tuple[socket.socket, socket.socket | None]:
    """Listen on the port of the API, and on that of management where it is another one."""
    host_setting = "--host (boot file: server.host)"
    api = listen(boot.host, boot.port, "--port (boot file: server.port)", host_setting)
    if boot.management_address is None:
        return api, None
    setting = "--management-port (boot file: server.management_port)"
    if boot.management_address[0] != boot.host:
        host_setting = "--management-host (boot file: server.management_host)"
    try:
        return api, listen(*boot.management_address, setting, host_setting)
    except ListenError:
        api.close()
        raise


def _close(*sockets: socket.socket | None) -> None:
    for each in sockets:
        if each is not None:
            each.close()
