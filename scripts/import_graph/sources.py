"""The modules of a repository, and which of them import which."""

import ast
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

IMPORT_ROOTS = ("cluster", "examples/models", ".")
"""Folders whose modules are imported by their path below it, besides `<package>/src`."""

LEFT_OUT = "tests/"


class SourceError(Exception):
    """The sources cannot be read; the message has the place and the remedy."""


@dataclass(frozen=True, slots=True)
class Import:
    """Two files, and the line in the first that imports the second."""

    importer: str
    imported: str
    line: int


@dataclass(frozen=True, slots=True)
class Sources:
    """Paths of all modules, relative to the repository, and the imports among them."""

    files: tuple[str, ...]
    imports: tuple[Import, ...]


def read_sources(root: Path) -> Sources:
    """Read the modules below a folder that Git tracks, and new ones that it does not ignore."""
    files = tuple(_list_files(root))
    by_name = {name: file for file in files for name in module_names(file)}
    imports = [one for file in files for one in _imports_of(root, file, by_name)]
    return Sources(files, tuple(imports))


def _list_files(root: Path) -> list[str]:
    options = ["-z", "--cached", "--others", "--exclude-standard", "--", "*.py"]
    command = ["git", "-C", str(root), "ls-files", *options]
    listed = subprocess.run(command, capture_output=True, text=True)
    if listed.returncode:
        raise SourceError(f"{listed.stderr.strip()}; name a working tree of Git")
    files = sorted(set(listed.stdout.split("\0")) - {""})
    return [file for file in files if not file.startswith(LEFT_OUT) and (root / file).is_file()]


def module_names(file: str) -> Iterator[str]:
    """Yield the names by which a file can be imported, that of its deepest import root first."""
    path = PurePosixPath(file)
    for root in (f"{path.parts[0]}/src", *IMPORT_ROOTS):
        if path.is_relative_to(root):
            parts = path.relative_to(root).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports_of(root: Path, file: str, by_name: Mapping[str, str]) -> Iterator[Import]:
    for name, line in _imported_names(_parse(root, file), _package_of(file)):
        imported = _find(name, by_name)
        if imported and imported != file:
            yield Import(file, imported, line)


def _parse(root: Path, file: str) -> ast.Module:
    try:
        return ast.parse((root / file).read_bytes())
    except SyntaxError as error:
        place = f"{file}:{error.lineno}" if error.lineno else file
        raise SourceError(f"{place} does not parse: {error.msg}; correct the file") from error
    except ValueError as error:
        raise SourceError(f"{file} does not parse: {error}; correct the file") from error


def _package_of(file: str) -> list[str]:
    parts = next(module_names(file)).split(".")
    return parts if file.endswith("/__init__.py") else parts[:-1]


def _imported_names(tree: ast.Module, package: list[str]) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) + 1 - node.level] if node.level else []
            base = [*parents, *([node.module] if node.module else [])]
            yield from ((".".join([*base, alias.name]), node.lineno) for alias in node.names)


def _find(name: str, by_name: Mapping[str, str]) -> str | None:
    """The file of the longest beginning of a dotted name that is a module."""
    while name not in by_name and "." in name:
        name = name.rpartition(".")[0]
    return by_name.get(name)
