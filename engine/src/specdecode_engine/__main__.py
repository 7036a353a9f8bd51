"""`specdecode-engine`: read the boot file, load the checkpoints, serve.

Its subcommands are `fetch`, `check`, `kernels`, `drain` and `undrain`. Each imports only what it
needs: a preStop hook waits for `drain`.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdecode_api.boot import EngineBoot
    from specdecode_engine.serve.engine.core import LoadedEngine, Progress

FAILED = 1
BAD_BOOT = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the engine until it is stopped; 2 for an invalid boot file, 1 for a failed start."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    given = sys.argv[1:] if arguments is None else list(arguments)
    run = _COMMANDS.get(given[0]) if given else None
    return _serve(given) if run is None else run(given[1:])


def _fetch(arguments: Sequence[str]) -> int:
    from specdecode_engine.fetch.command import fetch

    # Process 1 of a container receives only signals that it handles. Nothing is lost: the next
    # download resumes the files on disk.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(FAILED))
    return fetch(arguments)


def _check(arguments: Sequence[str]) -> int:
    from specdecode_engine.cli.check_command import check

    return check(arguments)


def _list_kernels(arguments: Sequence[str]) -> int:
    from specdecode_engine.cli.kernels_command import list_kernels

    return list_kernels(arguments)


def _drain(arguments: Sequence[str]) -> int:
    from specdecode_engine.cli.drain_command import drain

    return drain(arguments)


def _undrain(arguments: Sequence[str]) -> int:
    from specdecode_engine.cli.drain_command import undrain

    return undrain(arguments)


_COMMANDS: Mapping[str, Callable[[Sequence[str]], int]] = {
    "fetch": _fetch,
    "check": _check,
    "kernels": _list_kernels,
    "drain": _drain,
    "undrain": _undrain,
}


def _serve(given: Sequence[str]) -> int:
    from specdecode_engine.cli.flags import parse_flags
    from specdecode_engine.process import (
        ConfigurationError,
        freeze_heap,
        leave,
        return_freed_tensors,
        termination_message_for,
    )
    from specdecode_engine.serve.server import serve
    from specdecode_server.request_id import log_request_ids

    log_request_ids()
    try:
        boot = parse_flags(given, log_warnings=True)
    except ConfigurationError as error:
        print(f"specdecode-engine: {error}", file=sys.stderr)
        leave(termination_message_for(error))
        return BAD_BOOT
    return_freed_tensors()
    return serve(
        boot,
        lambda progress: _load(boot, progress),
        on_failure=lambda error: leave(termination_message_for(error)),
        reread=lambda: parse_flags(given),
        on_loaded=freeze_heap,
    )


def _load(boot: EngineBoot, progress: Progress) -> LoadedEngine:
    from specdecode_engine.process import keep_freed_memory
    from specdecode_engine.serve.engine.core import LoadedEngine

    progress("importing torch")
    # Imported here: torch takes seconds, and the server answers its probes meanwhile.
    from specdecode_engine.startup.build import build_core

    progress("loading checkpoints")
    core = build_core(boot, progress=True, on_weights=keep_freed_memory)
    table = core.scheduler.policy.table
    return LoadedEngine(core, Path(boot.model.path), core.facts, core.stage_draft, table)


if __name__ == "__main__":
    sys.exit(main())
