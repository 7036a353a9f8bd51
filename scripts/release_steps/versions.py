"""Writes a version to every place that has one, and the section of the changelog."""

import re
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from packaging.version import InvalidVersion, Version

from scripts.release_steps.errors import ReleaseError

PROJECTS = ("", "crds", "kernels", "server", "engine", "router", "operator")
CHART_FILE = Path("charts/specdecode/Chart.yaml")
CHANGELOG = Path("CHANGELOG.md")
UNRELEASED = "## Unreleased"
_SEMANTIC = re.compile(r"\d+\.\d+\.\d+(-(alpha|beta|rc)\.\d+)?")
_PROJECT_VERSION = re.compile(r'^version = "(?P<version>[^"]+)"$', re.MULTILINE)
_LOCKED = r'(name = "{name}"\nversion = ")[^"]+(")'


@dataclass(frozen=True, slots=True)
class Edit:
    """New text of a file."""

    path: Path
    text: str


def check_version(wanted: str, current: str) -> None:
    """Check that a version is one, and later than the current one, which may be released once.

    Raises:
        ReleaseError: otherwise.
    """
    if not _SEMANTIC.fullmatch(wanted):
        raise ReleaseError(f"version {wanted!r}: write MAJOR.MINOR.PATCH, or with -rc.1 after it")
    try:
        is_later = Version(wanted) >= Version(current)
    except InvalidVersion as error:
        raise ReleaseError(f"current version: {error}; write MAJOR.MINOR.PATCH") from error
    if not is_later:
        raise ReleaseError(f"version {wanted} is before {current}, the current one")


def current_version(root: Path) -> str:
    """The later one of the workspace's version and the chart's."""
    found = _PROJECT_VERSION.search((root / "pyproject.toml").read_text())
    of_chart = re.search(r"^version: (\S+)$", (root / CHART_FILE).read_text(), re.MULTILINE)
    if found is None or of_chart is None:
        raise ReleaseError(f"{root}: pyproject.toml or {CHART_FILE} has no line with its version")
    return max(found["version"], of_chart[1], key=Version)


def next_version(current: str) -> str:
    """The next minor version."""
    version = Version(current)
    return f"{version.major}.{version.minor + 1}.0"


def release_edits(root: Path, version: str, today: date) -> list[Edit]:
    """List what a release changes in the sources.

    Raises:
        ReleaseError: where a file has no place for the version, or nothing is unreleased.
    """
    projects = [_project(root, folder, version) for folder in PROJECTS]
    return [
        *projects,
        _lock(root, version),
        _chart(root, version),
        _changelog(root, version, today),
    ]


def changelog_section(text: str, heading: str) -> str:
    """The text under a heading `## …`, without it.

    Raises:
        ReleaseError: when the heading is missing or has nothing under it.
    """
    _, found, rest = text.partition(f"\n{heading}\n")
    section = re.split(r"^## ", rest, maxsplit=1, flags=re.MULTILINE)[0].strip()
    if not found or not section:
        raise ReleaseError(f"{CHANGELOG} has nothing under {heading!r}: write what has changed")
    return section


def heading(version: str, today: date) -> str:
    """The heading of a released version in the changelog."""
    return f"## {version} - {today.isoformat()}"


def _project(root: Path, folder: str, version: str) -> Edit:
    path = root / folder / "pyproject.toml"
    text, count = _PROJECT_VERSION.subn(f'version = "{version}"', path.read_text(), count=1)
    if not count:
        raise ReleaseError(f'{path} has no line version = "…"')
    return Edit(path, text)


def _lock(root: Path, version: str) -> Edit:
    path = root / "uv.lock"
    text = path.read_text()
    for name in ("workspace", "api", "kernels", "server", "engine", "router", "operator"):
        pattern = _LOCKED.format(name=f"specdecode-{name}")
        text, count = re.subn(pattern, rf"\g<1>{Version(version)}\g<2>", text)
        if count != 1:
            raise ReleaseError(f"{path} has {count} packages specdecode-{name}: run `uv lock`")
    return Edit(path, text)


def _chart(root: Path, version: str) -> Edit:
    path = root / CHART_FILE
    text = path.read_text()
    for key in ("version", "appVersion"):
        text, count = re.subn(rf"^{key}: .*$", f"{key}: {version}", text, flags=re.MULTILINE)
        if count != 1:
            raise ReleaseError(f"{path} has {count} lines {key}: …, not one")
    return Edit(path, text)


def _changelog(root: Path, version: str, today: date) -> Edit:
    path = root / CHANGELOG
    text = path.read_text()
    changelog_section(text, UNRELEASED)
    if f"\n## {version} - " in text:
        raise ReleaseError(f"{path} has a section of {version}: choose another version")
    released = f"{UNRELEASED}\n\n{heading(version, today)}"
    return Edit(path, text.replace(UNRELEASED, released, 1))
