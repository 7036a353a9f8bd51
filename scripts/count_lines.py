"""Counts files, lines, code lines and long functions of the packages; last a line of JSON.

    python -m scripts.count_lines           the figures
    python -m scripts.count_lines --check   1 where a limit below is exceeded

Code lines are counted without docstrings, comments and blanks in two ways: `code_lines` as
`ast.unparse` writes the code, one line for a statement however long, so that wrapping does not
count; `physical_code_lines` as the file has them.
"""

import argparse
import ast
import io
import json
import statistics
import sys
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "crds": "specdecode_api",
    "kernels": "specdecode_kernels",
    "server": "specdecode_server",
    "engine": "specdecode_engine",
    "router": "specdecode_router",
    "operator": "specdecode_operator",
}
CORE = ("engine", "kernels", "crds")  # whose lines are limited together

MAX_CORE_LINES = 81_100
MAX_ENGINE_LINES = 60_400
MAX_ENGINE_CODE_LINES = 33_770
MAX_ENGINE_FILES = 434
MAX_ENGINE_ROOT_ENTRIES = 21
MAX_FILE_LINES = 400
MAX_MEDIAN_FILE_LINES = 123
MAX_FUNCTION_LINES = 60
LONGEST_SHOWN = 5

_NOT_CODE = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
)


@dataclass(frozen=True, slots=True)
class Function:
    """A function and the lines from `def`, or its first decorator, to its end."""

    name: str
    lines: int


@dataclass(frozen=True, slots=True)
class Module:
    """A file and what was counted in it."""

    path: str
    lines: int
    code_lines: int
    physical_code_lines: int
    functions: tuple[Function, ...]


@dataclass(frozen=True, slots=True)
class PackageSize:
    """The sums of a package."""

    files: int
    lines: int
    code_lines: int
    physical_code_lines: int
    median_file: float
    longest_files: tuple[tuple[str, int], ...]
    longest_functions: tuple[tuple[str, int], ...]
    root_entries: int


def measure_module(path: str, text: str) -> Module:
    """Count a file's lines, code lines and functions."""
    tree = ast.parse(text)
    functions = tuple(
        Function(f"{path}:{node.lineno} {node.name}", _length(node))
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    physical = count_physical_code_lines(text, tree)
    return Module(path, len(text.splitlines()), count_code_lines(tree), physical, functions)


def count_physical_code_lines(text: str, tree: ast.Module) -> int:
    """Count the lines of a file that hold code: no blank line, comment or docstring."""
    code = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NOT_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if is_docstring(node):
            code -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(code)


def count_code_lines(tree: ast.Module) -> int:
    """Count the lines that `ast.unparse` writes without docstrings."""
    return sum(bool(line.strip()) for line in ast.unparse(_NoDocstrings().visit(tree)).splitlines())


class _NoDocstrings(ast.NodeTransformer):
    """Leaves out strings that stand alone."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if is_docstring(node) else node


def is_docstring(node: ast.AST) -> TypeGuard[ast.Expr]:
    """Whether a statement is a string that stands alone, below an attribute for example."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        return False
    return isinstance(node.value.value, str)


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return (node.end_lineno or node.lineno) - first + 1


def measure_package(modules: Sequence[Module], root_entries: int) -> PackageSize:
    """Sum up the files of a package."""
    functions = [function for module in modules for function in module.functions]
    return PackageSize(
        files=len(modules),
        lines=sum(module.lines for module in modules),
        code_lines=sum(module.code_lines for module in modules),
        physical_code_lines=sum(module.physical_code_lines for module in modules),
        median_file=statistics.median(module.lines for module in modules),
        longest_files=_longest((module.path, module.lines) for module in modules),
        longest_functions=_longest((one.name, one.lines) for one in functions),
        root_entries=root_entries,
    )


def _longest(entries: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(entries, key=lambda entry: -entry[1])[:LONGEST_SHOWN])


def read_modules(folder: Path) -> list[Module]:
    """Measure all Python files below a folder."""
    files = sorted(folder.rglob("*.py"))
    return [measure_module(str(f.relative_to(ROOT)), f.read_text(encoding="utf-8")) for f in files]


def count_root_entries(folder: Path) -> int:
    """Count a package's files and folders; `__init__.py`, `py.typed` and caches are not counted."""
    left_out = {"__init__.py", "py.typed", "__pycache__"}
    return sum(entry.name not in left_out for entry in folder.iterdir())


def exceeded(sizes: dict[str, PackageSize], core_median: float) -> Iterator[str]:
    """Yield a sentence for every limit that is exceeded."""
    engine = sizes["engine"]
    limits = [
        ("lines of engine, kernels and crds", sum(sizes[p].lines for p in CORE), MAX_CORE_LINES),
        ("lines of the engine", engine.lines, MAX_ENGINE_LINES),
        ("code lines of the engine", engine.code_lines, MAX_ENGINE_CODE_LINES),
        ("files of the engine", engine.files, MAX_ENGINE_FILES),
        ("entries at the engine's root", engine.root_entries, MAX_ENGINE_ROOT_ENTRIES),
        ("median lines of a file of engine, kernels and crds", core_median, MAX_MEDIAN_FILE_LINES),
    ]
    for size in sizes.values():
        limits += [
            (f"lines of {path}", lines, MAX_FILE_LINES) for path, lines in size.longest_files
        ]
        limits += [
            (f"lines of {name}", lines, MAX_FUNCTION_LINES)
            for name, lines in size.longest_functions
        ]
    for what, value, limit in limits:
        if value > limit:
            yield f"{what}: {value:g}, at most {limit}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures; with `--check` return 1 where a limit is exceeded."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="count_lines", description="Count lines of the packages."
    )
    parser.add_argument("--check", action="store_true", help="fail where a limit is exceeded")
    options = parser.parse_args(arguments)
    folders = {name: ROOT / name / "src" / package for name, package in PACKAGES.items()}
    modules = {name: read_modules(folder) for name, folder in folders.items()}
    sizes = {
        name: measure_package(modules[name], count_root_entries(folder))
        for name, folder in folders.items()
    }
    core_median = statistics.median(one.lines for name in CORE for one in modules[name])
    problems = list(exceeded(sizes, core_median))
    print("\n".join([*table(sizes), *problems]))
    print(json.dumps(summary(sizes, core_median)))
    return int(options.check and bool(problems))


def table(sizes: dict[str, PackageSize]) -> Iterator[str]:
    """Yield lines for people."""
    yield f"{'package':10}{'files':>7}{'lines':>8}{'code':>8}{'median':>8}{'root':>6}"
    for name, one in sizes.items():
        counts = f"{one.files:7}{one.lines:8}{one.code_lines:8}{one.median_file:8g}"
        yield f"{name:10}{counts}{one.root_entries:6}"
    for what in ("longest_files", "longest_functions"):
        entries = [entry for one in sizes.values() for entry in getattr(one, what)]
        yield f"{what.replace('_', ' ')}:"
        yield from (f"{lines:6} {name}" for name, lines in _longest(entries))


def summary(sizes: dict[str, PackageSize], core_median: float) -> dict[str, object]:
    """The figures by package, and those of engine, kernels and crds together."""
    packages: dict[str, object] = {
        name: {
            "files": one.files,
            "lines": one.lines,
            "code_lines": one.code_lines,
            "physical_code_lines": one.physical_code_lines,
            "median_file_lines": one.median_file,
            "max_file_lines": one.longest_files[0][1],
            "max_function_lines": one.longest_functions[0][1],
            "root_entries": one.root_entries,
        }
        for name, one in sizes.items()
    }
    core = {"lines": sum(sizes[name].lines for name in CORE), "median_file_lines": core_median}
    return packages | {"core": core}


if __name__ == "__main__":
    sys.exit(main())
