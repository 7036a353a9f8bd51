"""Rows of docs/coverage.md and lines of CHANGELOG.md occur once."""

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def _repeated(keys: list[str]) -> list[str]:
    return [key for key, count in Counter(keys).items() if count > 1]


def test_a_subject_has_one_row_in_coverage() -> None:
    lines = (ROOT / "docs/coverage.md").read_text(encoding="utf-8").splitlines()
    subjects = [line.split("|")[1].strip() for line in lines if line.startswith("| ")]
    headers = {"row", "claim"}
    rows = [subject for subject in subjects if subject not in headers]
    assert len(rows) > 50
    assert _repeated(rows) == []


def test_the_changelog_mentions_a_change_once() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    unreleased = text.partition("## Unreleased")[2].partition("\n## ")[0]
    lines = [line for line in unreleased.splitlines() if line.startswith("- ")]
    assert len(lines) > 50
    # A line that was changed on two branches begins alike in both versions.
    assert _repeated([line[:80] for line in lines]) == []
