"""`make compile-gate`: compile every cell that is stale or missing and write kernels/compiled.tsv.

An interrupted run continues where it ended. `--named` compiles the set of CI instead and compares
it with the file. Ends with 1 if a cell exceeds a limit or differs from the file.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence

import triton
from tqdm import tqdm

from checks.compile_gate.cells import Cell, all_cells, named_cells
from checks.compile_gate.compiler import compile_cells
from checks.compile_gate.limits import describe, errors_of
from checks.compile_gate.record import Row, read_record, write_record

ROWS_PER_WRITE = 20


def refresh(processes: int) -> list[str]:
    """Compile what the file lacks; returns the errors of the whole file."""
    record = read_record()
    rows: dict[Cell, list[Row]] = {}
    for row in record.rows:
        if record.is_current(row.cell.op) and not row.error:
            rows.setdefault(row.cell, []).append(row)
    cells = all_cells()
    pending = [cell for cell in cells if cell not in rows]
    for number, compiled in enumerate(compile_rows(pending, processes), 1):
        rows[compiled[0].cell] = compiled
        if number % ROWS_PER_WRITE == 0:
            write_record(row for cell in cells for row in rows.get(cell, []))
    write_record(row for cell in cells for row in rows.get(cell, []))
    return errors_of(read_record())


def compare(processes: int) -> list[str]:
    """Compile the named cells; returns those that differ from the file."""
    recorded: dict[Cell, list[Row]] = {}
    for row in read_record().rows:
        recorded.setdefault(row.cell, []).append(row)
    return [
        f"{describe(rows[0].cell)}: compiled to {rows}, the file has {recorded.get(rows[0].cell)}"
        for rows in compile_rows(named_cells(), processes)
        if rows != recorded.get(rows[0].cell)
    ]


def compile_rows(cells: Sequence[Cell], processes: int) -> Iterator[list[Row]]:
    """Compile cells, with progress; a cell that the engine refuses is not compiled."""
    yield from ([Row(cell, None, refused=cell.refused)] for cell in cells if cell.refused)
    accepted = [cell for cell in cells if not cell.refused]
    compiled = compile_cells(accepted, processes)
    for cell, usages, error in tqdm(compiled, total=len(accepted), unit="cell"):
        yield [Row(cell, usage) for usage in usages] or [Row(cell, None, error=error or "nothing")]


def main() -> int:
    """Print the errors."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="compile_gate")
    parser.add_argument("--named", action="store_true", help="compare the set of CI with the file")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    if triton.knobs.runtime.interpret:
        print("TRITON_INTERPRET is set: nothing would be compiled; unset it", file=sys.stderr)
        return 2
    errors = (compare if options.named else refresh)(options.processes)
    for error in errors:
        print(error, file=sys.stderr)
    print(f"{len(errors)} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
