"""`specdecode-engine`: read the boot file, load the checkpoints, serve; or fetch checkpoints."""

import gc
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from specdecode_api.boot import EngineBoot
from specdecode_api.report import LastWords, Reason
from specdecode_api.table import BadTable
from specdecode_engine.flags import BadBoot, parse_flags
from specdecode_engine.heap import keep_freed_memory
from specdecode_engine.last_words import leave, words_for
from specdecode_engine.serve import BadConfiguration, LoadedEngine, Progress, serve
from specdecode_engine.table_file import load_table

FAILED = 1
BAD_BOOT = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the engine until it is told to stop; 2 for a bad boot file, 1 for a failed start."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] == ["fetch"]:
        # Imported here: who serves needs nothing of it.
        from specdecode_engine.fetch import fetch

        # Process 1 of a container hears no signal that it does not handle. Nothing is lost: what
        # is on disk is taken up again.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(FAILED))
        return fetch(given[1:])
    try:
        boot = read_boot(given)
    except BadConfiguration as error:
        print(f"specdecode-engine: {error}", file=sys.stderr)
        leave(LastWords(reason=Reason.BOOT_FILE_INVALID, message=str(error)))
        return BAD_BOOT
    keep_freed_memory()
    return serve(
        boot,
        lambda progress: _load(boot, progress),
        on_failure=lambda error: leave(words_for(error)),
        reread=lambda: read_boot(given),
    )


def read_boot(arguments: Sequence[str]) -> EngineBoot:
    """Read flags, boot file and speculation table.

    Raises:
        BadConfiguration: with every mistake.
    """
    try:
        boot = parse_flags(arguments)
        table = load_table(boot.speculation)
    except (BadBoot, BadTable) as error:
        raise BadConfiguration(str(error)) from None
    speculation = boot.speculation.with_table(table.entries)
    return boot.model_copy(update={"speculation": speculation})


def _load(boot: EngineBoot, progress: Progress) -> LoadedEngine:
    progress("importing torch")
    # Imported here: torch takes seconds, and the server answers its probes meanwhile.
    from specdecode_engine.build import build_core

    progress("loading checkpoints")
    core = build_core(boot, progress=True)
    # What was loaded stays to the end: the collector need not go through it again and again.
    gc.collect()
    gc.freeze()
    return LoadedEngine(core, Path(boot.model.path), core.facts)


if __name__ == "__main__":
    sys.exit(main())
