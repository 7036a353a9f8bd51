"""Checks the words of docs, comments, messages and help texts against `vocabulary.tsv`.

    python -m scripts.vocabulary                      everything; exit code 1 if a word is found
    python -m scripts.vocabulary --paths engine docs  only these files and folders
    python -m scripts.vocabulary --summary            how many findings per file, most first

A finding is excused by `vocabulary: allow <word>: <reason>` in a comment on its line, or on any
line of the string that holds it. At most `MAX_EXEMPTIONS` of these may exist.
"""

import argparse
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.vocabulary_text import Passage, has_prose, passages_of

ROOT = Path(__file__).resolve().parent.parent
TABLE = Path(__file__).with_suffix(".tsv")
MAX_EXEMPTIONS = 10
CONTEXT_CHARS = 60  # the longest allowed context on either side of a word

CHECKED = (
    *("README.md", "CONTRIBUTING.md", "Makefile", "pyproject.toml"),
    *("docs", "charts", "examples", "crds", "kernels"),
    *("server", "engine", "router", "operator"),
    *("bench", "scripts", "cluster", "demo", "tests"),
)
"""Folders and files whose text is checked."""

EXCLUDED = (
    "docs/glossary.md",  # contains the old words
    "CHANGELOG.md",  # lists the renames
    "scripts/vocabulary.tsv",
    "tests/scripts/test_vocabulary.py",
    "examples/models/recipe/",  # text that the example models are trained on
    "tests/charts/fixtures/",
    "bench/results/",
    "cluster/go/",
    "crds/src/specdecode_api/peer_flags.toml",  # flags of others; its own words are in a page
)

_EXEMPTION = re.compile(r"vocabulary: allow (?P<word>[^:<]+): (?P<reason>\S.*?)(?= *-->|$)")


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern, what to write instead, contexts in which it is allowed, and where it counts."""

    pattern: re.Pattern[str]
    use: str
    allowed: re.Pattern[str] | None
    files: re.Pattern[str] | None = None  # the beginnings of their paths; None for all

    def findings(self, passage: Passage) -> Iterator[tuple[int, str]]:
        """Yield line and text of every match that no context allows."""
        for match in self.pattern.finditer(passage.text):
            if not self._is_allowed(passage.text, match):
                yield passage.line_of(match.start(), match[0]), " ".join(match[0].split())

    def _is_allowed(self, text: str, match: re.Match[str]) -> bool:
        if self.allowed is None:
            return False
        start = max(0, match.start() - CONTEXT_CHARS)
        contexts = self.allowed.finditer(text, start, match.end() + CONTEXT_CHARS)
        return any(c.start() <= match.start() and match.end() <= c.end() for c in contexts)


@dataclass(frozen=True, slots=True)
class Finding:
    """A word that is not used, and where it is."""

    file: str
    line: int
    found: str
    use: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.found} → {self.use}"


def read_rules(table: str) -> tuple[Rule, ...]:
    """Read the table.

    Raises:
        ValueError: a row without its two to four columns.
    """
    rules = []
    for number, line in enumerate(table.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        pattern, use, *rest = line.split("\t")
        if not use or len(rest) > 2:
            raise ValueError(
                f"vocabulary.tsv:{number}: write pattern, replacement, contexts, files"
            )
        allowed, files = (_compiled(text) if text else None for text in (*rest, "", "")[:2])
        rules.append(Rule(_compiled(pattern), use, allowed, files))
    return tuple(rules)


def _compiled(pattern: str) -> re.Pattern[str]:
    # A lookbehind has a fixed width: its space stays a space.
    parts = re.split(r"(\(\?<!.*?\))", pattern)
    spaced = [part if part.startswith("(?<!") else part.replace(" ", r"\s+") for part in parts]
    return re.compile("".join(spaced), re.IGNORECASE)


def check_text(file: str, text: str, rules: Sequence[Rule]) -> Iterator[tuple[Finding, Passage]]:
    """Yield what is found in one file, and the passage that holds it."""
    rules = [rule for rule in rules if rule.files is None or rule.files.match(file)]
    for passage in passages_of(file, text):
        for rule in rules:
            for line, found in rule.findings(passage):
                yield Finding(file, line, found, rule.use), passage


def check_file(
    file: str, text: str, rules: Sequence[Rule]
) -> tuple[list[Finding], dict[tuple[str, int], int]]:
    """Return what no exemption excuses, and how many findings each exemption excuses."""
    lines = text.splitlines()
    exemptions = {
        number: match["word"].strip().lower()
        for number, line in enumerate(lines, 1)
        if (match := _EXEMPTION.search(line))
    }
    uses = {(file, number): 0 for number in exemptions}
    findings = []
    for finding, passage in check_text(file, "\n".join(map(_without_exemption, lines)), rules):
        excused_by = _excusing(finding, passage, exemptions)
        if excused_by is None:
            findings.append(finding)
        else:
            uses[file, excused_by] += 1
    return findings, uses


def _without_exemption(line: str) -> str:
    return _EXEMPTION.sub("", line)


def _excusing(finding: Finding, passage: Passage, exemptions: dict[int, str]) -> int | None:
    """Return the line of the exemption that covers a finding."""
    for number, word in exemptions.items():
        is_near = number == finding.line or (
            passage.is_string and passage.first_line <= number <= passage.last_line
        )
        if is_near and word == finding.found.lower():
            return number
    return None


def tracked_files(paths: Sequence[str]) -> list[str]:
    """List the files to check, tracked or new, below these paths."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *paths]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = sorted(set(output.splitlines()))
    files = [file for file in files if has_prose(file) and not file.startswith(EXCLUDED)]
    return [file for file in files if (ROOT / file).is_file()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Check and print; 1 when a word was found or an exemption is one too many or unused."""
    options = _options(arguments)
    rules = read_rules(TABLE.read_text(encoding="utf-8"))
    findings, uses = list[Finding](), dict[tuple[str, int], int]()
    for file in tracked_files(options.paths or CHECKED):
        in_file, used = check_file(file, (ROOT / file).read_text(encoding="utf-8"), rules)
        findings += in_file
        uses |= used  # files differ, so no key is replaced
    if options.summary:
        for file, count in Counter(finding.file for finding in findings).most_common():
            print(f"{count:5} {file}")
        for use, count in Counter(finding.use for finding in findings).most_common():
            print(f"{count:5} → {use}")
    else:
        print(*findings, sep="\n", end="\n" if findings else "")
    problems = list(_exemption_problems(uses))
    print(*problems, sep="\n", end="\n" if problems else "")
    print(f"vocabulary: {len(findings)} findings, {len(uses)} of {MAX_EXEMPTIONS} exemptions")
    return int(bool(findings or problems))


def _exemption_problems(uses: dict[tuple[str, int], int]) -> Iterator[str]:
    if len(uses) > MAX_EXEMPTIONS:
        yield f"{len(uses)} exemptions; at most {MAX_EXEMPTIONS} are allowed: reword the rest"
    for (file, line), count in uses.items():
        if not count:
            yield f"{file}:{line}: this exemption excuses nothing; remove it"


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="vocabulary", description="Check the project's words."
    )
    parser.add_argument("--paths", nargs="+", help="check only these files and folders")
    parser.add_argument("--summary", action="store_true", help="print counts per file and word")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
