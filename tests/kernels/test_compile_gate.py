"""Every kernel compiles for every GPU, without one, and takes no more than the GPU has.

The interpreter accepts much that the compiler rejects; only compiling reveals it. All cells are
compiled by `make compile-gate`; here its file is checked, and a named set is compiled again.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from bench.cpu.kernels.table import KERNEL_OPS
from checks.compile_gate.cells import (
    CAPABILITIES,
    DIMS,
    FLOAT8_DIMS,
    FORWARDS,
    Cell,
    all_cells,
    name_of,
    named_cells,
)
from checks.compile_gate.limits import SHARED_BYTES, errors_of, violations
from checks.compile_gate.record import ROOT, Record, Row, hash_of, read_record, write_record
from checks.compile_gate.usage import Usage
from specdecode_kernels import FLOAT8

MOST_NAMED_CELLS = 178
TIME_LIMIT_S = 900  # a minute on two idle cores

DECODE = Cell("attend", 86, "decode", "bfloat16", "bfloat16", 128, "1-16")
USAGE = Usage("attend_kernel", 128, 0, 40_000, kv_buffers=2, copy_bytes=16, multiply="mma.sync")
COMPILE_ONE = """
from checks.compile_gate.cells import named_cells
from checks.compile_gate.compiler import Compiler
from checks.compile_gate.limits import violations
from checks.compile_gate.record import Row, read_record
kind = ("decode", "bfloat16", "bfloat16", 128, 90)
for cell in named_cells():
    if (cell.forward, cell.dtype, cell.kv_dtype, cell.dim, cell.capability) == kind:
        for usage in Compiler().compile(cell):
            print(*violations(Row(cell, usage)), sep="; ")
print("current:", read_record().is_current("attend"))
"""


def run_compiling(*arguments: str, sources: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    paths = [str(sources)] if sources else []
    environment["PYTHONPATH"] = os.pathsep.join([*paths, *sys.path])
    command = (sys.executable, *arguments)
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=TIME_LIMIT_S
    )


def test_the_file_is_current_and_complete_and_every_kernel_within_its_limits() -> None:
    assert errors_of(read_record()) == []


@pytest.mark.parametrize("form", ["mxfp4", "nvfp4", "float8"])
def test_tiles_of_16_and_32_rows_multiply_by_one_instruction(form: str) -> None:
    """So that sums have the same order; tiles of 64 rows are for rows in whole blocks alone."""
    found: dict[int, set[str]] = {}
    for row in read_record().rows:
        if row.cell.op in (f"linear {form}", f"linear {form} some rows"):
            assert row.usage is not None
            found.setdefault(row.cell.capability, set()).add(row.usage.multiply)
    assert found == {capability: {"mma.sync"} for capability in CAPABILITIES}


def test_the_matrix_has_every_op_capability_and_head_dimension() -> None:
    cells = all_cells()
    assert {cell.op for cell in cells} >= set(KERNEL_OPS)
    assert {cell.capability for cell in cells} == set(CAPABILITIES) == set(SHARED_BYTES)
    attention = [cell for cell in cells if cell.is_attention]
    for dtype, dims in FLOAT8_DIMS.items():
        for kv_dtype, kv_dims in ((dtype, DIMS), (FLOAT8, dims)):
            for dim, forward, capability in product(kv_dims, FORWARDS, CAPABILITIES):
                kind = (capability, forward, name_of(dtype), name_of(kv_dtype), dim)
                assert sorted(_groups_of(attention, kind)) == [*range(1, 17)]


def _groups_of(cells: list[Cell], kind: tuple[int, str, str, str, int]) -> Iterator[int]:
    for cell in cells:
        if (cell.capability, cell.forward, cell.dtype, cell.kv_dtype, cell.dim) == kind:
            first, last = (int(group) for group in cell.groups.split("-"))
            yield from range(first, last + 1)


def test_the_named_set_compiles_to_what_the_file_contains() -> None:
    assert 60 <= len(named_cells()) <= MOST_NAMED_CELLS
    ran = run_compiling("-m", "checks.compile_gate", "--named")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "0 errors"


def with_two_stages(sources: Path) -> None:
    edit(sources / "tiles.py", "stages=3", "stages=2")


def with_page_ids_of_the_same_step(sources: Path) -> None:
    edit(
        sources / "attend.py",
        "        k_rows = _load_rows(k, pool_rows,",
        "        pool_rows = _pool_rows(pages, start, stop, PAGE_SIZE, ROWS)\n"
        "        k_rows = _load_rows(k, pool_rows,",
    )


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))


@pytest.mark.parametrize("plant", [with_two_stages, with_page_ids_of_the_same_step])
def test_a_loop_with_one_buffer_fails(plant: Callable[[Path], None], tmp_path: Path) -> None:
    package = tmp_path / "specdecode_kernels"
    shutil.copytree(ROOT / "kernels" / "src" / "specdecode_kernels", package)
    plant(package / "triton")
    ran = run_compiling("-c", COMPILE_ONE, sources=tmp_path)
    assert ran.returncode == 0, ran.stderr
    found, is_current = ran.stdout.splitlines()
    assert "holds 1 tile of keys" in found
    assert is_current == "current: False"


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (replace(USAGE, stack_bytes=8), "spills 8 bytes"),
        (replace(USAGE, shared_bytes=101_377), "the limit is 101376"),
        (replace(USAGE, kv_buffers=1), "holds 1 tile"),
        (replace(USAGE, copy_bytes=4), "copies 4 bytes at a time, not 16"),
        (replace(USAGE, multiply="-"), "tensor cores"),
    ],
)
def test_what_exceeds_a_limit_is_an_error(usage: Usage, expected: str) -> None:
    assert list(violations(Row(DECODE, USAGE))) == []
    (found,) = violations(Row(DECODE, usage))
    assert expected in found


def test_half_precision_heads_of_64_and_128_may_not_be_refused() -> None:
    assert list(violations(Row(DECODE, None, refused="a reason"))) == ["is refused: a reason"]
    wide = replace(DECODE, dtype="float32", kv_dtype="float32", dim=256)
    assert list(violations(Row(wide, None, refused="a reason"))) == []


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    rows = [
        Row(DECODE, USAGE),
        Row(Cell("sample", 90), replace(USAGE, kernel="borders_kernel")),
        Row(replace(DECODE, dim=96), None, refused="a reason"),
        Row(replace(DECODE, dim=80), None, error="an error"),
    ]
    write_record(rows, tmp_path / "compiled.tsv")
    record = read_record(tmp_path / "compiled.tsv")
    assert record.rows == rows
    assert record.is_current("attend")
    assert not replace(record, triton_version="0").is_current("attend")


def test_cells_that_are_stale_missing_or_left_over_are_errors() -> None:
    record = Record(sources={"attend": hash_of("attend")}, rows=[Row(DECODE, USAGE)])
    assert errors_of(record, [DECODE]) == []
    (stale,) = errors_of(replace(record, sources={"attend": "0"}), [DECODE])
    assert "make compile-gate" in stale
    other = replace(DECODE, capability=90)
    assert [error.split(": ")[1] for error in errors_of(record, [other])] == [
        "missing",
        "not in the matrix",
    ]
