"""`specdecode-engine`: read the boot file, load the checkpoints, serve."""

import sys
from collections.abc import Sequence
from pathlib import Path

from specdecode_api.boot import EngineBoot
from specdecode_engine.flags import BadBoot, parse_flags
from specdecode_engine.serve import LoadedEngine, Progress, serve


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the engine until it is told to stop; 2 for a bad boot file, 1 for a failed start."""
    try:
        boot = parse_flags(arguments)
    except BadBoot as error:
        print(f"specdecode-engine: {error}", file=sys.stderr)
        return 2
    return serve(boot, lambda progress: _load(boot, progress))


def _load(boot: EngineBoot, progress: Progress) -> LoadedEngine:
    # Imported here: torch takes seconds, and the server answers its probes meanwhile.
    from specdecode_engine.build import build_core

    progress("loading checkpoints")
    return LoadedEngine(build_core(boot, progress=True), Path(boot.model.path))


if __name__ == "__main__":
    sys.exit(main())
