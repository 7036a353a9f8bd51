"""`specdecode-engine`: read the boot file, load the checkpoints, serve.

Its subcommands are `fetch`, `check`, `kernels`, `drain` and `undrain`. Each imports only what it
needs: a preStop hook waits for `drain`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence

FAILED = 1
BAD_BOOT = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the engine until it is stopped; 2 for an invalid boot file, 1 for a failed start."""
    from specdecode_engine.process import configure_logging

    configure_logging()
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
    from specdecode_engine.cli.api_key_flags import take_api_keys
    from specdecode_engine.cli.flags import parse_flags
    from specdecode_engine.process import (
        ConfigurationError,
        freeze_heap,
        leave,
        return_freed_tensors,
        termination_message_for,
    )
    from specdecode_engine.serve.engine.core import load_engine
    from specdecode_engine.serve.engine.engine_process import in_process
    from specdecode_engine.serve.server import serve
    from specdecode_server.request_id import log_request_ids

    log_request_ids()
    try:
        kept, api_keys = take_api_keys(given, os.environ)
        _forget(given, kept)
        boot = parse_flags(kept, log_warnings=True)
    except ConfigurationError as error:
        print(f"specdecode-engine: {error}", file=sys.stderr)
        leave(termination_message_for(error))
        return BAD_BOOT
    connect = None
    if boot.has_engine_process:
        # transformers reads tokenizers without torch, in a sixth of the memory.
        sys.modules["torch"] = None  # type: ignore[assignment]
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
        connect = in_process(boot, load_engine, time.monotonic)
    return_freed_tensors()
    return serve(
        boot,
        lambda progress: load_engine(boot, progress),
        on_failure=lambda error: leave(termination_message_for(error)),
        reread=lambda: parse_flags(kept),
        on_loaded=freeze_heap,
        connect=connect,
        api_keys=api_keys,
    )


def _forget(given: Sequence[str], kept: Sequence[str]) -> None:
    """Remove keys from the arguments of this process that children and reports of errors get."""
    for words in (sys.argv, sys.orig_argv):
        if given and words[-len(given) :] == list(given):
            words[-len(given) :] = kept


if __name__ == "__main__":
    sys.exit(main())
