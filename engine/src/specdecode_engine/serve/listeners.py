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
        host_setting = "--host (boot file: server.host)"
        api = listen(boot.host, boot.port, "--port (boot file: server.port)", host_setting)
        opened = [api]
        try:
            host, port = api.getsockname()[:2]
            management = None
            if boot.management_port not in (0, port):
                where = boot.management_host or boot.host
                setting = "--management-port (boot file: server.management_port)"
                if boot.management_host:
                    host_setting = "--management-host (boot file: server.management_host)"
                management = listen(where, boot.management_port, setting, host_setting)
                opened.append(management)
            drain = drain_socket.listen(boot.drain_socket, host, port)
        except (ListenError, DrainSocketError) as error:
            for sock in opened:
                sock.close()
            raise ListenError(str(error)) from None
        listeners = cls(api, management, drain)
        listeners._log_addresses()
        return listeners

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
        for sock in self.http:
            sock.close()
        self.drain.close()
