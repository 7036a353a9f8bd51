"""`specdecode-engine`: read the boot file, load the checkpoints, serve."""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from specdecode_api.boot import EngineBoot
from specdecode_engine.flags import BadBoot, parse_flags
from specdecode_engine.serve import LoadedEngine, Progress, serve

BAD_BOOT = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the engine until it is told to stop; 2 for a bad boot file, 1 for a failed start."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        boot = parse_flags(arguments)
    except BadBoot as error:
        print(f"specdecode-engine: {error}", file=sys.stderr)
        return BAD_BOOT
    return serve(boot, lambda progress: _load(boot, progress))


def _load(boot: EngineBoot, progress: Progress) -> LoadedEngine:
    progress("importing torch")
    # Imported here: torch takes seconds, and the server answers its probes meanwhile.
    from specdecode_engine.build import build_core

    progress("loading checkpoints")
    core = build_core(boot, progress=True)
    return LoadedEngine(core, Path(boot.model.path), core.facts)


if __name__ == "__main__":
    sys.exit(main())
