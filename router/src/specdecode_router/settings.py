"""Settings of the router: flags of its command line."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from specdecode_api import names
from specdecode_api.command_line import ArgumentParser, bad_number
from specdecode_api.key_mask import without_key

DEFAULT_RETRIES: Final = 2
DEFAULT_TIMEOUT_SECONDS: Final = 60.0
DEFAULT_MAX_BODY_BYTES: Final = 16 * 2**20
"""For engines of another runtime: some images in base64. They have no limit of their own."""


class EngineRuntime(StrEnum):
    """What engines run."""

    SPECDECODE = "specdecode"
    VLLM = "vllm"


@dataclass(frozen=True, slots=True, order=True)
class EngineAddress:
    """Host of an engine and its management port, of another runtime the port of its API."""

    host: str
    port: int

    def url(self, path: str = "", port: int | None = None) -> str:
        """URL of a path, of another port where one is given."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{port or self.port}{path}"

    def __str__(self) -> str:
        return self.url().removeprefix("http://")


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """The settings of a router process.

    Engines are those of `engines`, or those of the Service that `service` and `namespace` name.
    """

    engines: tuple[EngineAddress, ...] = ()
    service: str | None = None
    namespace: str | None = None
    deployment: str = ""
    """Name of the SpecDecodeDeployment, by which pods of trials are recognized."""
    kubeconfig: str | None = None
    runtime: EngineRuntime = EngineRuntime.SPECDECODE
    token_path: Path | None = None
    api_keys_path: Path | None = None
    """File or folder with the keys of clients, which the router checks for another runtime."""
    host: str = "0.0.0.0"
    port: int = names.ENGINE_PORT
    management_port: int = names.MANAGEMENT_PORT
    retries: int = DEFAULT_RETRIES
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    pre_stop_seconds: float = 5.0
    drain_seconds: float = 60.0
    max_connections: int = 4096
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    """Of a client's request to another runtime; engines of specdecode report theirs."""
    headers_timeout_seconds: float = 10.0
    body_timeout_seconds: float = 60.0
    cors_origins: tuple[str, ...] = ()
    log_level: str = "INFO"


def parse_flags(arguments: Sequence[str]) -> RouterSettings:
    """Read the command line.

    Raises:
        SystemExit: for --help, and for flags that are unknown, wrong or missing, with the remedy.
    """
    parser = _parser()
    options = vars(parser.parse_args(arguments))
    options = {name: value for name, value in options.items() if value is not None}
    for name in ("engines", "cors_origins"):
        if name in options:
            options[name] = tuple(options[name])
    options["runtime"] = EngineRuntime(options.get("runtime", EngineRuntime.SPECDECODE))
    settings = RouterSettings(**options)
    if bool(settings.engines) == bool(settings.service):
        parser.error("name the engines with --engines, or their Service with --service")
    if settings.service and not settings.namespace:
        parser.error("--service needs --namespace, the namespace of the Service")
    if settings.runtime is not EngineRuntime.SPECDECODE:
        _check_other_runtime(parser, settings)
    elif settings.api_keys_path is not None:
        parser.error(
            "--api-key-file is for --runtime vllm; engines of specdecode check keys: start them "
            "with --api-key-file"
        )
    elif "max_body_bytes" in options:
        parser.error(
            "--max-body-bytes is for --runtime vllm; engines of specdecode report their limit: "
            "start them with --max-body-bytes"
        )
    elif settings.token_path is None:
        parser.error(
            "--token-file is missing: it contains the token that the engines read with "
            "--router-token-file"
        )
    return settings


def _check_other_runtime(parser: ArgumentParser, settings: RouterSettings) -> None:
    if settings.token_path is not None:
        parser.error(f"--token-file: engines of {settings.runtime} know no token; remove it")


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="specdecode-router",
        description="Send requests to engines with the longest known prefix, and continue streams "
        "of lost engines on others.",
    )
    _add_engines(parser)
    _add_calls(parser)
    _add_server(parser)
    return parser


def _add_engines(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--engines",
        type=_addresses,
        metavar="HOST:PORT,…",
        help="management ports of the engines, for use without Kubernetes",
    )
    add("--service", help="headless Service of the engines, whose EndpointSlices are watched")
    add("--namespace", help="namespace of the Service")
    add("--deployment", help="SpecDecodeDeployment of the engines; recognizes pods of trials")
    add("--kubeconfig", help="kubeconfig; default: the pod's service account")
    add(
        "--runtime",
        choices=[each.value for each in EngineRuntime],
        help="what the engines run; vllm: --engines are the ports of their API, streams of lost "
        "engines are not continued (default: specdecode)",
    )
    add(
        "--api-key-file",
        dest="api_keys_path",
        type=Path,
        help="with --runtime vllm: file or folder with the keys that clients must send, one per "
        "line; read again when it changes",
    )
    add(
        "--token-file",
        dest="token_path",
        type=Path,
        help="file with the token that engines of specdecode require, or folder with the file "
        "token; read again when it changes",
    )


def _add_calls(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--retries",
        type=_count,
        help="how often a call may lose its engine without a new token in between "
        f"(default: {DEFAULT_RETRIES})",
    )
    add(
        "--timeout",
        dest="timeout_seconds",
        type=_seconds,
        help="seconds that a request waits for an engine, unless its header "
        f"{names.HEADER_TIMEOUT} has others (default: {DEFAULT_TIMEOUT_SECONDS:g})",
    )


def _add_server(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--host", help="address of the API to listen on (default: 0.0.0.0)")
    add("--port", type=int, help=f"port of the API (default: {names.ENGINE_PORT})")
    add(
        "--management-port",
        type=int,
        help=f"port of probes and metrics (default: {names.MANAGEMENT_PORT})",
    )
    add(
        "--pre-stop",
        dest="pre_stop_seconds",
        type=_seconds,
        help="seconds that the router still serves after the signal to stop (default: 5)",
    )
    add(
        "--drain-seconds",
        type=_seconds,
        help="seconds that running requests have after that (default: 60)",
    )
    add(
        "--max-body-bytes",
        type=_bytes,
        metavar="BYTES",
        help="with --runtime vllm: maximum size of a request's body, which the router holds in "
        f"memory until the response ends (default: {DEFAULT_MAX_BODY_BYTES})",
    )
    add("--max-connections", type=_count, help="most connections of clients (default: 4096)")
    add(
        "--request-headers-timeout",
        dest="headers_timeout_seconds",
        type=_seconds,
        help="seconds from the first byte of a request to the end of its headers (default: 10)",
    )
    add(
        "--request-body-timeout",
        dest="body_timeout_seconds",
        type=_seconds,
        help="seconds from there to the end of its body (default: 60)",
    )
    add(
        "--cors-origins",
        nargs="*",
        metavar="URL",
        help="origins of web pages that may use the API from a browser; * permits all",
    )
    add("--log-level", choices=("DEBUG", "INFO", "WARNING", "ERROR"))


def _addresses(text: str) -> tuple[EngineAddress, ...]:
    return tuple(_address(part) for part in text.split(",") if part)


def _address(text: str) -> EngineAddress:
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isdecimal() and 0 < int(port) < 2**16):
        raise argparse.ArgumentTypeError(
            f"{without_key(text)!r} is not an address: write HOST:PORT with the management port of "
            "an engine"
        )
    return EngineAddress(host.removeprefix("[").removesuffix("]"), int(port))


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) > 1_000_000:
        raise bad_number(text, "write a number from 0 to 1000000")
    return int(text)


def _bytes(text: str) -> int:
    if not text.isdecimal() or not 2**10 <= int(text) <= 2**30:
        raise bad_number(text, f"write a number of bytes from {2**10} to {2**30}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 86_400:
        raise bad_number(text, "write a number of seconds up to a day")
    return seconds
