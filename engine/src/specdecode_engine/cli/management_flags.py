"""The address of a management port that is set on the command line."""

from collections.abc import Mapping

from specdecode_api.boot.server import LOOPBACK

PORT, HOST = "management_port", "management_host"


def management_defaults(
    document: Mapping[str, object], options: Mapping[str, object]
) -> dict[str, object]:
    """Return the host of a management port that a flag sets and no boot file: loopback.

    The port of a boot file has the API's address: in pods, kubelet and Prometheus connect to it.

    Args:
        document: the boot file.
        options: flags, by field of the boot file.
    """
    server = document.get("server")
    in_file = isinstance(server, dict) and any(
        server.get(each) is not None for each in (PORT, HOST)
    )
    if in_file or f"server.{PORT}" not in options or f"server.{HOST}" in options:
        return {}
    return {f"server.{HOST}": LOOPBACK}
