"""`specdecode-engine`: read the boot file, load the checkpoints, serve.

Its subcommands are `serve`, `chat`, `fetch`, `check`, `kernels`, `drain` and `undrain`; without
one it serves. Each imports only what it needs: a preStop hook waits for `drain`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdecode_api.boot import EngineBoot

FAILED = 1
BAD_BOOT = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the engine until it is stopped; 2 for a refused boot file or model, 1 for a failed start.

    A signal during a download ends the process with 128 plus its number.
    """
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
    from specdecode_engine.cli.check.command import check

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


def _serve_model(arguments: Sequence[str]) -> int:
    return _serve(arguments, has_model=True)


def _chat(arguments: Sequence[str]) -> int:
    from specdecode_engine.cli.chat.command import chat

    return chat(arguments)


_COMMANDS: Mapping[str, Callable[[Sequence[str]], int]] = {
    "serve": _serve_model,
    "chat": _chat,
    "fetch": _fetch,
    "check": _check,
    "kernels": _list_kernels,
    "drain": _drain,
    "undrain": _undrain,
}


def _serve(given: Sequence[str], has_model: bool = False) -> int:
    from specdecode_engine.cli.api_key_flags import take_api_keys
    from specdecode_engine.cli.flags import parse_flags
    from specdecode_engine.cli.model_names import with_model_flag
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
    from specdecode_server.listen import ListenError
    from specdecode_server.request_id import log_request_ids

    log_request_ids()
    try:
        kept, api_keys = take_api_keys(given, os.environ)
        _forget(given, kept)
        flags = with_model_flag(kept) if has_model else kept
        parsed = parse_flags(flags, log_warnings=True)
        in_place = _find_models(parsed)
    except (ConfigurationError, ListenError) as error:
        print(f"specdecode-engine: {error}", file=sys.stderr)
        leave(termination_message_for(error))
        return FAILED if isinstance(error, ListenError) else BAD_BOOT
    boot = in_place(parsed)
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
        reread=lambda: in_place(parse_flags(flags)),
        on_loaded=freeze_heap,
        connect=connect,
        api_keys=api_keys,
    )


def _find_models(boot: EngineBoot) -> Callable[[EngineBoot], EngineBoot]:
    """Download models of the Hub; return what puts their folders into a boot file.

    Raises:
        ModelRefused: a model is neither a folder nor on the Hub, or cannot be downloaded.
        ConfigurationError: an adapter has the name of the model.
        ListenError: a port cannot be listened on, which the server would find after a download.
    """
    from specdecode_api.report import ModelRole
    from specdecode_engine.cli.model_names import check_adapter_names, hub_uri
    from specdecode_engine.serve.listeners import Listeners

    names = {ModelRole.TARGET: boot.model.path, ModelRole.DRAFT: boot.speculation.draft_path}
    of_hub = {role: name for role, name in names.items() if name and hub_uri(name)}
    check_adapter_names(boot)
    Listeners.check(boot.server)
    if not of_hub:
        return lambda read: read
    # Imported here: the library of the Hub takes half a second.
    from specdecode_engine.cli.hub_models import download_models

    return download_models(of_hub, os.environ.get("HF_ENDPOINT") or None).in_place


def _forget(given: Sequence[str], kept: Sequence[str]) -> None:
    """Remove keys from the arguments of this process that children and reports of errors get."""
    for words in (sys.argv, sys.orig_argv):
        if given and words[-len(given) :] == list(given):
            words[-len(given) :] = kept


if __name__ == "__main__":
    sys.exit(main())
