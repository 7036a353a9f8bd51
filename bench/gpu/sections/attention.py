"""G3, G4: attention against the memory's rate, and what several query rows cost over one."""

from collections.abc import Iterator

import torch

from bench.cpu.kernels.attention_cell import DIM, Calls, Cell, make_calls
from bench.gpu.context import Context
from bench.gpu.record import Row
from bench.gpu.targets import ATTENTION_SHARE, LARGE_KV_BYTES, VERIFY_OVER_DECODE, WIDE_QUERIES
from specdecode_kernels import Backend, choose_backend

MOST_TOKENS = 1 << 18


def measure(context: Context) -> Iterator[Row]:
    """Time decodes, then verifies of the same batch, and a tree; also torch's own attention."""
    backend = choose_backend("triton", context.device, torch.bfloat16, DIM).backend
    for decode in decode_cells(context):
        calls = make_calls(decode, context.device)
        decode_us = time_one(context, calls, backend)
        yield _row_of_decode(context, decode, decode_us, context.time_us(calls.torch_unpaged))
        del calls
        for queries in context.scale.attention_queries[1:]:
            if not context.has_time(2):
                return
            for is_tree in (False, True) if decode.page_size > 1 else (False,):
                cell = Cell(
                    decode.batch, queries, decode.context, decode.page_size, decode.shared, is_tree
                )
                took_us = time_one(context, make_calls(cell, context.device), backend)
                target = VERIFY_OVER_DECODE if queries <= WIDE_QUERIES else None
                note = f"{took_us:.1f} µs"
                yield Row(f"{cell}: to 1 row", took_us / decode_us, "x", target=target, note=note)


def decode_cells(context: Context) -> Iterator[Cell]:
    """List plain decodes, the large ones first: those have a target."""
    scale = context.scale
    for length in sorted(scale.attention_contexts, reverse=True):
        for batch in sorted(scale.attention_batches, reverse=True):
            if batch * length <= MOST_TOKENS:
                yield from (Cell(batch, 1, length, page) for page in (16, 1))
    length, batch = min(scale.attention_contexts), max(scale.attention_batches)
    yield Cell(batch, 1, length, shared=8)


def time_one(context: Context, calls: Calls, backend: Backend) -> float:
    """Time our attention by a backend, in microseconds."""
    return context.time_us(lambda: calls.ours(backend))


def _row_of_decode(context: Context, cell: Cell, took_us: float, torch_us: float) -> Row:
    floor_us = 1e6 * cell.kv_bytes / context.floors.memory_bytes_per_s
    target = ATTENTION_SHARE if cell.kv_bytes >= LARGE_KV_BYTES else None
    peers = {"torch, not paged": torch_us}
    return Row(str(cell), took_us, "µs", floor_us, floor_us / took_us, target, peers)
