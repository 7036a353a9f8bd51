"""The checkout that a release is made of: a clone, so that the caller's files are never touched."""

import os
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from scripts.release_steps.commands import run
from scripts.release_steps.errors import ReleaseError
from scripts.release_steps.versions import (
    CHANGELOG,
    changelog_section,
    check_version,
    current_version,
    release_edits,
)

_AUTHOR = ("specdecode release", "release@specdecode.io")  # where git knows nobody, as in CI


@dataclass(frozen=True, slots=True)
class Source:
    """A clone with the release's commit and tag."""

    folder: Path
    checkout: Path  # the caller's repository, which knows how to reach `origin`
    version: str
    is_resumed: bool  # the tag is in `origin` already

    @property
    def tag(self) -> str:
        """The release's tag in git."""
        return f"v{self.version}"

    def commit(self) -> str:
        """The commit of the release."""
        return run(["git", "rev-parse", "HEAD"], directory=self.folder).strip()

    def changes(self) -> str:
        """The release's section of the changelog."""
        return _changes(self.folder, self.version)

    def push(self, branch: str) -> None:
        """Push commit and tag together, or neither; nothing to do where they are there already."""
        if self.is_resumed:
            return
        tag = f"refs/tags/{self.tag}"
        run(["git", "fetch", "--quiet", self.folder, f"+{tag}:{tag}"], directory=self.checkout)
        named = (f"{tag}^{{}}:refs/heads/{branch}", tag)
        run(["git", "push", "--atomic", "origin", *named], directory=self.checkout)


def prepare(checkout: Path, branch: str, version: str, today: date, to: Path) -> Source:
    """Clone a checkout and commit the release there; a released tag is taken as it is.

    Raises:
        ReleaseError: when `origin` has other commits, the version is an earlier one, or nothing is
            unreleased.
    """
    tag = f"v{version}"
    if _in_origin(checkout, f"refs/tags/{tag}"):
        wanted = f"+refs/tags/{tag}:refs/tags/{tag}"
        run(["git", "fetch", "--quiet", "origin", wanted], directory=checkout)
        run(["git", "clone", "--quiet", "--branch", tag, checkout, to])
        return Source(to, checkout, version, is_resumed=True)
    _check_up_to_date(checkout, branch)
    run(["git", "clone", "--quiet", "--no-tags", checkout, to])
    check_version(version, current_version(to))
    for edit in release_edits(to, version, today):
        edit.path.write_text(edit.text)
    run(["uv", "lock", "--check", "--offline"], directory=to)
    _commit(to, version)
    return Source(to, checkout, version, is_resumed=False)


def dirty_files(root: Path) -> list[str]:
    """Files that differ from the last commit."""
    status = run(["git", "status", "--porcelain"], directory=root)
    return [line[3:] for line in status.splitlines()]


def _commit(folder: Path, version: str) -> None:
    name, email = _AUTHOR
    known = (
        {}
        if os.environ.get("GIT_AUTHOR_NAME") or _knows_author(folder)
        else {
            **{f"GIT_{role}_NAME": name for role in ("AUTHOR", "COMMITTER")},
            **{f"GIT_{role}_EMAIL": email for role in ("AUTHOR", "COMMITTER")},
        }
    )
    words = ["git", "commit", "--quiet", "--all", "--message", f"Release {version}"]
    run(words, directory=folder, environment=known)
    notes = f"specdecode {version}\n\n{_changes(folder, version)}"
    words = ["git", "tag", "--annotate", "--cleanup=verbatim", f"v{version}", "--message", notes]
    run(words, directory=folder, environment=known)


def _knows_author(folder: Path) -> bool:
    return bool(
        run(["git", "config", "--default", "", "--get", "user.email"], directory=folder).strip()
    )


def _changes(folder: Path, version: str) -> str:
    text = (folder / CHANGELOG).read_text()
    for line in text.splitlines():
        if line.startswith(f"## {version} - "):
            return changelog_section(text, line)
    raise ReleaseError(f"{CHANGELOG} has no section of {version}")


def _check_up_to_date(checkout: Path, branch: str) -> None:
    head = run(["git", "rev-parse", "HEAD"], directory=checkout).strip()
    remote = _in_origin(checkout, f"refs/heads/{branch}")
    if head != remote:
        raise ReleaseError(
            f"HEAD is {head[:12]}, {branch} of origin is {remote[:12] or 'missing'}: "
            f"check out {branch}, pull and push first"
        )


def _in_origin(checkout: Path, reference: str) -> str:
    """The commit or tag object that a reference names in `origin`; empty if there is none."""
    listed = run(["git", "ls-remote", "origin", reference], directory=checkout)
    return next((line.split()[0] for line in listed.splitlines() if line.endswith(reference)), "")
