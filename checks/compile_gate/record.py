"""`kernels/compiled.tsv`: one row per kernel of a cell, valid for the sources it was compiled from.

Its header contains Triton's version and, for each op, the hash of the sources that decide its
machine code, so that a change of one op makes only its rows stale.
"""

import ast
import csv
import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import triton

import specdecode_kernels.triton
from checks.compile_gate.cells import (
    DELTA,
    DEPENDENT,
    EXPERTS,
    KEEP,
    LINEAR,
    QUANTIZED_EXPERTS,
    ROUTERS,
    SAMPLING,
    Cell,
)
from checks.compile_gate.usage import Usage
from specdecode_kernels.testing import backend_of

ROOT = Path(__file__).resolve().parent.parent.parent
PATH = ROOT / "kernels" / "compiled.tsv"
PACKAGE = specdecode_kernels.triton.__name__
SOURCES = Path(str(specdecode_kernels.triton.__file__)).parent
MODULES = {
    "attend": "attend",
    "store_kv float8": "store_kv",
    "rope_and_store_kv float8": "rope_and_store_kv",
    "merge_splits": "merge_states",
    "add_rms_norm parts": "rms_norm",
    **dict.fromkeys((*EXPERTS, *QUANTIZED_EXPERTS), "experts"),
    **dict.fromkeys(LINEAR, "linear"),
    **dict.fromkeys(ROUTERS, "route_experts"),
    **dict.fromkeys(SAMPLING, "sample"),
    **dict.fromkeys(DELTA, "gated_delta"),
    **dict.fromkeys(KEEP, "keep_drafted"),
}
"""Ops whose function in a backend does not lie in the module of their kernel."""


@dataclass(frozen=True, slots=True)
class Row:
    """A cell, and a kernel of it, or why there is none: refused by the engine, or an error."""

    cell: Cell
    usage: Usage | None
    refused: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """The content of the file."""

    triton_version: str = triton.__version__
    sources: dict[str, str] = field(default_factory=dict)  # hash by op
    rows: list[Row] = field(default_factory=list)

    def is_current(self, op: str) -> bool:
        """Whether the rows of an op were compiled from the sources as they are."""
        return self.triton_version == triton.__version__ and self.sources.get(op) == hash_of(op)


@cache
def hash_of(op: str) -> str:
    """Hash the modules of the op's kernels and launchers, without comments and docstrings."""
    digest = hashlib.sha256()
    for module in sorted(_modules_of(_module_of(op))):
        digest.update(ast.dump(_without_docstrings(_parse(module))).encode())
    return digest.hexdigest()[:16]


def _module_of(op: str) -> str:
    op = DEPENDENT.get(op, op)
    if op in MODULES:
        return MODULES[op]
    function = getattr(backend_of("triton", torch.device("cpu")), op)
    launcher = function.func if isinstance(function, partial) else function
    return str(launcher.__module__).removeprefix(f"{PACKAGE}.")


def _modules_of(module: str) -> set[str]:
    """Return a module and all modules of the package that it imports, directly or not."""
    found, pending = set[str](), [module]
    while pending:
        name = pending.pop()
        if name in found:
            continue
        found.add(name)
        pending += [
            str(node.module).removeprefix(f"{PACKAGE}.")
            for node in ast.walk(_parse(name))
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith(f"{PACKAGE}.")
        ]
    return found


@cache
def _parse(module: str) -> ast.Module:
    return ast.parse((SOURCES / f"{module}.py").read_text())


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            body[:] = [line for line in body if not _is_string(line)]
    return tree


def _is_string(line: ast.stmt) -> bool:
    return (
        isinstance(line, ast.Expr)
        and isinstance(line.value, ast.Constant)
        and isinstance(line.value.value, str)
    )


COLUMNS = (
    *(column.name for column in fields(Cell)),
    *(column.name for column in fields(Usage)),
    "refused",
    "error",
)


def write_record(rows: Iterable[Row], path: Path = PATH) -> None:
    """Write rows that were all compiled from the sources as they are."""
    rows = list(rows)
    ops = sorted({row.cell.op for row in rows})
    with path.open("w", newline="") as file:
        file.write("# Written by `make compile-gate`; do not edit.\n")
        file.write(f"# triton\t{triton.__version__}\n")
        file.writelines(f"# sources\t{op}\t{hash_of(op)}\n" for op in ops)
        writer = csv.DictWriter(file, COLUMNS, delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows(_as_text(row) for row in rows)


def read_record(path: Path = PATH) -> Record:
    """Read the file; a missing one is empty."""
    if not path.exists():
        return Record()
    lines = path.read_text().splitlines()
    header = [line.split("\t") for line in lines if line.startswith("#")]
    versions = [parts[1] for parts in header if parts[0] == "# triton"]
    sources = {parts[1]: parts[2] for parts in header if parts[0] == "# sources"}
    table = csv.DictReader([line for line in lines if not line.startswith("#")], delimiter="\t")
    return Record(versions[0], sources, [_from_text(texts) for texts in table])


def _as_text(row: Row) -> dict[str, object]:
    usage = asdict(row.usage) if row.usage else {}
    return asdict(row.cell) | usage | {"refused": row.refused, "error": row.error}


def _from_text(texts: dict[str, str]) -> Row:
    cell = Cell(**_typed(Cell, texts))
    usage = Usage(**_typed(Usage, texts)) if texts["kernel"] else None
    return Row(cell, usage, texts["refused"], texts["error"])


def _typed(record: type, texts: dict[str, str]) -> dict[str, Any]:
    return {
        column.name: int(texts[column.name]) if column.type is int else texts[column.name]
        for column in fields(record)
    }
