"""`specdecode-engine drain` and `undrain`: take a running engine out of service, and back."""

import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from specdecode_api.command_line import ArgumentParser, bad_number
from specdecode_engine.drain_socket import (
    DRAIN,
    UNDRAIN,
    DrainClient,
    DrainSocketError,
    NoAnswer,
    find_socket,
)

FAILED = 1
MAX_TIMEOUT_S = 86_400.0


def drain(arguments: Sequence[str]) -> int:
    """Report the engine as not ready, wait, and return the exit code; 1 without an engine."""
    options = _drain_parser().parse_args(arguments)
    deadline_s = time.monotonic() + options.timeout
    try:
        with DrainClient(options.socket or find_socket()) as client:
            reply = client.send(DRAIN)
            print(f"draining; running requests: {reply.get('running_requests')}", flush=True)
            if client.wait_for_end(deadline_s - time.monotonic()):
                print("the engine is stopping")
    except NoAnswer as error:
        _report("drain", error)
        # A busy engine may still serve what routers send it: its stop must not come earlier.
        time.sleep(max(deadline_s - time.monotonic(), 0.0))
        return FAILED
    except DrainSocketError as error:
        return _report("drain", error)
    return 0


def undrain(arguments: Sequence[str]) -> int:
    """Report the engine as ready again and return the exit code; 1 without an engine."""
    options = _parser("undrain", "Undo drain: report a running engine as ready again.").parse_args(
        arguments
    )
    try:
        with DrainClient(options.socket or find_socket()) as client:
            client.send(UNDRAIN)
    except DrainSocketError as error:
        return _report("undrain", error)
    print("serving")
    return 0


def _report(command: str, error: DrainSocketError) -> int:
    print(f"specdecode-engine {command}: {error}", file=sys.stderr)
    return FAILED


def _drain_parser() -> ArgumentParser:
    parser = _parser(
        DRAIN,
        "Report a running engine as not ready, so that routers remove it. It continues to serve, "
        "and closes connections after their response. Undo this with undrain.",
    )
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=0.0,
        metavar="SECONDS",
        help="Return after this time, or earlier if the engine stops (default 0).",
    )
    return parser


def _parser(command: str, description: str) -> ArgumentParser:
    parser = ArgumentParser(prog=f"specdecode-engine {command}", description=description)
    parser.add_argument(
        "--socket",
        type=Path,
        metavar="PATH",
        help="The engine's drain socket; by default that of the only engine of this user.",
    )
    return parser


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= MAX_TIMEOUT_S:
        raise bad_number(text, f"write a number of seconds from 0 to {MAX_TIMEOUT_S:.0f}")
    return seconds
