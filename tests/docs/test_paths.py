"""Every path, test and make target that the Markdown of the repository names exists."""

import fnmatch
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOT_CHECKED = frozenset(
    {
        "CHANGELOG.md",  # names what there was
        "docs/glossary.md",  # names old words
    }
)
NOT_THERE = frozenset(
    {
        "operator/__init__.py",  # must never be
        "bench/carry/",  # written by `make gpu-carry`, ignored by git
        "bench/results/gpu-<device>-<date>.json",  # written by `make bench-gpu`
    }
)
_FENCE = re.compile(r"^ *(```+|~~~+).*?^ *\1", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
_PATH = re.compile(r"(?:\.\./)*[\w<*.][\w<>*./-]*(?:::[\w*]+)?")
_TARGET = re.compile(r"make (?P<name>[a-z][a-z0-9-]*)")
_PEERS = ("vllm/", "sglang/")
"""Packages of others, whose files docs name."""
_EXTENSIONS = (".py", ".md", ".yaml", ".yml", ".json", ".toml", ".tsv", ".c", ".png", ".sh", ".go")


def _git_files(*patterns: str) -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [file for file in output.splitlines() if (ROOT / file).exists()]


@cache
def _known() -> frozenset[str]:
    """Files and folders of the repository, each by all its trailing parts."""
    known = set[str]()
    for file in _git_files():
        path = Path(file)
        for entry in (path, *path.parents):
            parts = entry.parts
            known |= {"/".join(parts[n:]) for n in range(len(parts))}
    return frozenset(known)


def is_repository_path(span: str) -> bool:
    """Whether a code span names a file or folder of ours, and not a URL, key or resource."""
    if not _PATH.fullmatch(span) or span in NOT_THERE:
        return False
    if span.startswith(_PEERS):
        return False
    if span.startswith(".") and not span.startswith(("../", ".ci/")):
        return False
    path = span.partition("::")[0]
    if "/" not in path:
        return path.endswith(".py") and "*" not in path
    is_below_root = (ROOT / path.split("/")[0]).is_dir()
    return path.endswith((*_EXTENSIONS, ".*", "/")) or is_below_root


def missing(span: str, folder: Path) -> str | None:
    """Return why a path does not exist; None where it does.

    A path is complete, or as much of its end as the text needs: `schedule/scheduler.py`. `<op>`
    and `*` stand for anything.
    """
    name, _, test = span.partition("::")
    path = re.sub(r"<[^>]*>", "*", name).rstrip("/")
    if path.startswith("../"):
        path = str((folder / path).resolve().relative_to(ROOT))
    found = fnmatch.filter(_known(), path) if "*" in path else [path] * (path in _known())
    if not found:
        return f"there is no {name}"
    if test and not any(_has_test(file, test) for file in _git_files(f"*{path}", path)):
        return f"{name} has no test {test}"
    return None


def _has_test(file: str, pattern: str) -> bool:
    names = re.findall(r"^ *(?:async )?def (\w+)", (ROOT / file).read_text(), re.MULTILINE)
    return bool(fnmatch.filter(names, pattern))


def _problems(file: str) -> Iterator[str]:
    text, folder = (ROOT / file).read_text(encoding="utf-8"), (ROOT / file).parent
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for span in _SPAN.findall(_FENCE.sub("", text)):
        make = _TARGET.match(span)
        if make and make["name"] not in targets:
            yield f"`{span}`: there is no such target in the Makefile"
        elif is_repository_path(span) and (why := missing(span, folder)):
            yield f"`{span}`: {why}"
    for match in _LINK.finditer(_SPAN.sub("", _FENCE.sub("", text))):
        target = match["target"].partition("#")[0]
        if target and ":" not in target and not (folder / target).exists():
            yield f"]({match['target']}): there is no such file"


@pytest.mark.parametrize("file", [f for f in _git_files("*.md") if f not in NOT_CHECKED])
def test_paths_named_in_docs_exist(file: str) -> None:
    problems = list(_problems(file))
    assert not problems, "\n".join([f"{file} names what does not exist:", *problems])


@pytest.mark.parametrize(
    "span",
    [
        "docs/glossary.md",
        "schedule/scheduler.py",
        "tests/",
        "bench/cpu/kernels/<op>.py",
        "Makefile",
    ],
)
def test_a_path_is_found_by_its_end(span: str) -> None:
    assert missing(span, ROOT) is None


def test_a_missing_file_and_a_missing_test_are_named() -> None:
    assert missing("schedule/no_such.py", ROOT) == "there is no schedule/no_such.py"
    why = missing("docs/test_paths.py::test_no_such", ROOT)
    assert why == "docs/test_paths.py has no test test_no_such"
    assert missing("docs/test_paths.py::test_paths_*", ROOT) is None


@pytest.mark.parametrize(
    "span",
    [
        "/v1/models",
        "hf://ORG/NAME",
        "nvidia.com/gpu",
        "pods/log",
        "a b/c.py",
        "x.partial",
        "vllm/config/lora.py",
    ],
)
def test_urls_and_keys_are_not_paths(span: str) -> None:
    assert not is_repository_path(span)
