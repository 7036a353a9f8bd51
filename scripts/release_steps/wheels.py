"""Checks that uv.lock has a wheel of every dependency for a platform, and lists what it lacks.

python -m scripts.release_steps.wheels linux/arm64
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.release_steps.images import RELEASED_IMAGES
from scripts.release_steps.lock import PLATFORMS, locked_wheels, without_wheel

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str]) -> int:
    """Check each platform, all by default; exit status 1 where a wheel is missing."""
    status = 0
    for name in arguments or list(PLATFORMS):
        if name not in PLATFORMS:
            print(f"unknown platform {name!r}: there is {', '.join(PLATFORMS)}", file=sys.stderr)
            return 2
        for image in RELEASED_IMAGES:
            wheels = locked_wheels(ROOT, image.package, image.extras, PLATFORMS[name])
            missing = without_wheel(wheels)
            is_built = name in image.platforms
            status |= bool(missing) and is_built
            found = f"{len(wheels) - len(missing)} of {len(wheels)} have a wheel"
            note = "" if is_built else " (the image is not built for it)"
            print(f"{name} {image.name}: {found}{note}")
            for each in missing:
                print(f"  no wheel: {each}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
