"""Finds and undoes the mounts below a folder, innermost first."""

import re
from pathlib import Path

from localnode.shell import succeeds

_MOUNTS = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")


def mounts_below(folder: Path, mountinfo: str) -> list[Path]:
    """List the mount points at or below the folder in the order in which to unmount them."""
    points = [Path(_unescape(line.split()[4])) for line in mountinfo.splitlines() if line]
    inside = [point for point in points if point.is_relative_to(folder)]
    return list(reversed(inside))  # the kernel lists them in the order of mounting


def unmount_below(folder: Path) -> list[Path]:
    """Unmount everything below the folder; return what could not be unmounted."""
    for point in mounts_below(folder, _MOUNTS.read_text()):
        if not succeeds(["umount", "--no-canonicalize", point]):
            succeeds(["umount", "--no-canonicalize", "--lazy", point])
    return mounts_below(folder, _MOUNTS.read_text())


def _unescape(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)
