"""What a compiled kernel may take, and what a record of them must contain."""

from collections.abc import Iterable, Iterator

from checks.compile_gate.cells import Cell, all_cells, dtype_of
from checks.compile_gate.record import Record, Row
from specdecode_kernels import FLOAT8

KIB = 1024
SHARED_BYTES = {
    80: 163 * KIB,
    86: 99 * KIB,
    89: 99 * KIB,
    90: 227 * KIB,
    100: 227 * KIB,
    120: 99 * KIB,
}
"""Shared memory that one program may take, by capability (CUDA C++ Programming Guide, "Technical
Specifications per Compute Capability")."""
MIN_KV_BUFFERS = 2
COPY_BYTES = 16
PRODUCTS = ("map_pairs_kernel", "map_quantized_kernel")
"""Kernels besides attention that multiply matrices."""
FLOAT8_COPY_BYTES = 8  # values of float8, whose tile in shared memory is swizzled by 8 bytes
FLOAT8_REST_BYTES = 4  # what 16 keys of float8 have after their latents, by 256 threads
NARROW_COPIES = {
    # Scales of a group are a row of scales apart.
    "linear": 4,
    "linear int4 zeros": 4,
    "linear int8 groups": 4,
    "linear int8 zeros in groups": 4,
    "linear float8 groups": 4,
    "experts int4": 4,
    "experts int8 groups": 4,
    "experts int8 zeros in groups": 4,
    "experts float8 groups": 4,
    # Each of 128 threads copies a part of 16 rows or 64 outputs by 32 inputs.
    "linear mxfp4 float16": 8,
    "experts nvfp4": 8,
    "experts mxfp4 float16": 8,
}
"""Bytes of a copy by cell, where they are fewer than `COPY_BYTES`."""
NEVER_REFUSED_DTYPES, NEVER_REFUSED_DIMS = ("bfloat16", "float16"), (64, 128)


def violations(row: Row) -> Iterator[str]:
    """List the limits that a row exceeds."""
    cell, usage = row.cell, row.usage
    if row.error:
        yield f"does not compile: {row.error}"
    if row.refused and cell.dtype in NEVER_REFUSED_DTYPES and cell.dim in NEVER_REFUSED_DIMS:
        yield f"is refused: {row.refused}"
    if usage is None:
        return
    if usage.stack_bytes:
        yield f"spills {usage.stack_bytes} bytes a thread"
    if usage.shared_bytes > SHARED_BYTES[cell.capability]:
        limit = SHARED_BYTES[cell.capability]
        yield f"takes {usage.shared_bytes} bytes of shared memory, the limit is {limit}"
    if cell.is_attention or usage.kernel in PRODUCTS:
        yield from _product_violations(row)


def _product_violations(row: Row) -> Iterator[str]:
    cell, usage = row.cell, row.usage
    assert usage is not None
    if usage.kv_buffers < MIN_KV_BUFFERS:
        what = "keys" if cell.is_attention else "weights"
        yield f"holds {usage.kv_buffers} tile of {what}: nothing is copied while it computes"
    is_float8 = cell.is_attention and dtype_of(cell.kv_dtype) == FLOAT8
    narrow = NARROW_COPIES.get(cell.op, COPY_BYTES)
    wanted = FLOAT8_COPY_BYTES if is_float8 else narrow
    if is_float8 and "latent" in cell.forward:
        wanted = FLOAT8_REST_BYTES
    if usage.copy_bytes < wanted:
        yield f"copies {usage.copy_bytes} bytes at a time, not {wanted}"
    if usage.multiply == "-":
        yield "does not multiply by tensor cores"


def errors_of(record: Record, cells: Iterable[Cell] | None = None) -> list[str]:
    """List what is stale, missing, left over, or beyond a limit."""
    wanted = set(all_cells() if cells is None else cells)
    present = {row.cell for row in record.rows}
    stale = sorted({cell.op for cell in wanted if not record.is_current(cell.op)})
    errors = [f"{op}: compiled from other sources; run `make compile-gate`" for op in stale]
    errors += [f"{describe(cell)}: missing" for cell in sorted(wanted - present)]
    errors += [f"{describe(cell)}: not in the matrix" for cell in sorted(present - wanted)]
    errors += [f"{describe(row.cell)}: {found}" for row in record.rows for found in violations(row)]
    return errors


def describe(cell: Cell) -> str:
    """Describe a cell on one line."""
    if not cell.is_attention:
        return f"{cell.op} on {cell.capability}"
    kv = f" over {cell.kv_dtype}" if cell.kv_dtype != cell.dtype else ""
    return (
        f"{cell.op} {cell.forward} {cell.dtype}{kv} dim {cell.dim} groups {cell.groups} "
        f"on {cell.capability}"
    )
