"""A release writes its version everywhere, and refuses versions and changelogs that do not fit."""

import shutil
import tomllib
from datetime import date
from pathlib import Path

import pytest
import yaml

from scripts.release_steps.errors import ReleaseError
from scripts.release_steps.versions import (
    CHART_FILE,
    PROJECTS,
    changelog_section,
    check_version,
    current_version,
    next_version,
    release_edits,
)

ROOT = Path(__file__).resolve().parents[2]
TODAY = date(2026, 11, 23)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The files that a release changes, as they are in this repository."""
    projects = [f"{folder}/pyproject.toml".lstrip("/") for folder in PROJECTS]
    for name in (*projects, "uv.lock", "CHANGELOG.md", str(CHART_FILE)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def write(root: Path, version: str) -> None:
    for edit in release_edits(root, version, TODAY):
        edit.path.write_text(edit.text)


def test_every_version_is_written_and_nothing_else(copy: Path) -> None:
    write(copy, "9.1.0-rc.2")
    for folder in PROJECTS:
        project = tomllib.loads((copy / folder / "pyproject.toml").read_text())
        assert project["project"]["version"] == "9.1.0-rc.2"
    locked = tomllib.loads((copy / "uv.lock").read_text())["package"]
    ours = {each["name"]: each["version"] for each in locked if each["name"].startswith("specdec")}
    assert len(ours) == len(PROJECTS)
    assert set(ours.values()) == {"9.1.0rc2"}
    before = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    assert [each for each in locked if each["name"] not in ours] == [
        each for each in before if each["name"] not in ours
    ]
    chart = yaml.safe_load((copy / CHART_FILE).read_text())
    assert (chart["version"], chart["appVersion"]) == ("9.1.0-rc.2", "9.1.0-rc.2")
    assert current_version(copy) == "9.1.0-rc.2"


def test_the_changelog_gets_a_section_and_an_empty_one(copy: Path) -> None:
    before = changelog_section((copy / "CHANGELOG.md").read_text(), "## Unreleased")
    write(copy, "9.1.0")
    text = (copy / "CHANGELOG.md").read_text()
    assert changelog_section(text, "## 9.1.0 - 2026-11-23") == before
    with pytest.raises(ReleaseError, match=r"CHANGELOG\.md has nothing under '## Unreleased'"):
        changelog_section(text, "## Unreleased")
    with pytest.raises(ReleaseError, match="nothing under"):
        release_edits(copy, "9.2.0", TODAY)


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ("1.2", r"version '1\.2': write MAJOR\.MINOR\.PATCH"),
        ("v1.2.3", "write MAJOR"),
        ("0.9.0", r"version 0\.9\.0 is before 1\.0\.0, the current one"),
        ("1.0.0-rc.1", "is before"),
    ],
)
def test_a_version_that_does_not_fit_is_refused(wanted: str, reason: str) -> None:
    with pytest.raises(ReleaseError, match=reason):
        check_version(wanted, "1.0.0")


def test_the_current_version_may_be_released_and_later_ones() -> None:
    for wanted in ("1.0.0", "1.0.1", "1.1.0-beta.3", "2.0.0"):
        check_version(wanted, "1.0.0")
    assert next_version("1.4.2") == "1.5.0"
    check_version(next_version(current_version(ROOT)), current_version(ROOT))


def test_a_file_without_a_place_for_the_version_is_named(copy: Path) -> None:
    (copy / "engine" / "pyproject.toml").write_text("[project]\n")
    with pytest.raises(ReleaseError, match=r"engine/pyproject\.toml has no line version"):
        release_edits(copy, "9.0.0", TODAY)
