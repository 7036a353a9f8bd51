"""The wheels that an image gets on a platform, from uv.lock and nothing else."""

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

from scripts.release_steps.commands import run
from scripts.release_steps.errors import ReleaseError

PYTHON = (3, 11)
"""Of the images' base, Debian bookworm."""

_GLIBC_MINORS = range(36, 4, -1)  # bookworm has glibc 2.36
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


@dataclass(frozen=True)
class Platform:
    """Where an image runs: the name that registries use, and the processor's name in wheels."""

    name: str
    machine: str

    @cached_property
    def tags(self) -> list[Tag]:
        """Tags of wheels that run there, best first."""
        minors = [minor for minor in _GLIBC_MINORS if minor >= 17 or self.machine == "x86_64"]
        names = [f"manylinux_2_{minor}_{self.machine}" for minor in minors]
        names += [f"{old}_{self.machine}" for minor, old in _LEGACY.items() if minor in minors]
        names.append(f"linux_{self.machine}")
        interpreter = f"cp{PYTHON[0]}{PYTHON[1]}"
        return [
            *cpython_tags(PYTHON, [interpreter], names),
            *compatible_tags(PYTHON, interpreter, names),
        ]

    @property
    def markers(self) -> dict[str, str]:
        """The environment in which the lock's markers are evaluated."""
        version = f"{PYTHON[0]}.{PYTHON[1]}"
        return {
            "implementation_name": "cpython",
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_system": "Linux",
            "python_full_version": f"{version}.0",
            "python_version": version,
            "sys_platform": "linux",
        }


PLATFORMS = {
    platform.name: platform
    for platform in (Platform("linux/amd64", "x86_64"), Platform("linux/arm64", "aarch64"))
}


@dataclass(frozen=True, slots=True)
class LockedWheel:
    """One distribution that an image gets; without a wheel for the platform, `url` is None."""

    name: str
    version: str
    url: str | None
    sha256: str | None

    @property
    def file(self) -> str:
        """The wheel's file name."""
        return (self.url or "").rsplit("/", 1)[-1]


def locked_wheels(
    root: Path, package: str, extras: Sequence[str], platform: Platform
) -> list[LockedWheel]:
    """List what uv installs of the lock for a package of the workspace, by name."""
    flags = [word for extra in extras for word in ("--extra", extra)]
    exported = run(
        [
            *("uv", "export", "--quiet", "--frozen", "--no-dev", "--package", package, *flags),
            *("--no-emit-workspace", "--no-header", "--no-hashes", "--no-annotate"),
        ],
        directory=root,
    )
    locked = tomllib.loads((root / "uv.lock").read_text())["package"]
    wanted = _wanted(exported.splitlines(), platform)
    return [_wheel(locked, name, version, platform) for name, version in sorted(wanted)]


def without_wheel(wheels: Iterable[LockedWheel]) -> list[str]:
    """List distributions that the platform would have to build from source."""
    return [f"{wheel.name} {wheel.version}" for wheel in wheels if wheel.url is None]


def best_wheel(wheels: Iterable[dict[str, Any]], platform: Platform) -> dict[str, Any] | None:
    """Choose the entry of a package's `wheels` that the platform prefers; None if none runs."""
    rank = {tag: place for place, tag in enumerate(platform.tags)}
    ranked = []
    for wheel in wheels:
        _, _, build, tags = parse_wheel_filename(wheel["url"].rsplit("/", 1)[-1])
        places = [rank[tag] for tag in tags if tag in rank]
        if places:
            ranked.append(
                (min(places), [-part if isinstance(part, int) else 0 for part in build], wheel)
            )
    return min(ranked, key=lambda each: each[:2])[2] if ranked else None


def _wanted(lines: Iterable[str], platform: Platform) -> set[tuple[str, str]]:
    wanted: set[tuple[str, str]] = set()
    for line in lines:
        if not line.strip() or line.startswith("#"):
            continue
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate(platform.markers):
            (pin,) = requirement.specifier
            wanted.add((canonicalize_name(requirement.name), pin.version))
    return wanted


def _wheel(
    locked: list[dict[str, Any]], name: str, version: str, platform: Platform
) -> LockedWheel:
    for package in locked:
        if package["name"] == name and package.get("version") == version:
            chosen = best_wheel(package.get("wheels", []), platform)
            if chosen is None:
                return LockedWheel(name, version, None, None)
            return LockedWheel(name, version, chosen["url"], chosen["hash"].removeprefix("sha256:"))
    raise ReleaseError(f"uv.lock has no {name} {version}: run `uv lock`")
