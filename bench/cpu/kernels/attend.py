"""Attention of decode, verify, tree and extend, and torch's own over contiguous rows."""

import sys
from collections.abc import Iterator

import torch

from bench.cpu.kernels.attention_cell import DIM, Cell, make_calls
from bench.cpu.kernels.both_ways import Case, flashinfer_backend, run
from specdecode_kernels import Backend


def sizes() -> Iterator[Cell]:
    """Decode is one query row, a verify some; then trees, then prompts."""
    for batch in (1, 8, 64):
        for context in (1024, 4096, 32768):
            for page_size in (1, 16):
                if batch * context <= 1 << 18:
                    yield from (
                        Cell(batch, queries, context, page_size) for queries in (1, 2, 4, 8, 16)
                    )
    yield from (Cell(batch, 16, 4096, is_tree=True) for batch in (1, 8))
    yield Cell(1, 2048, 4096)
    yield Cell(4, 512, 4096)


def cases(device: torch.device) -> Iterator[Case]:
    """Every size; bytes are those of the keys and values."""
    flashinfer = flashinfer_backend(device, DIM)
    for cell in sizes():
        yield _case(cell, flashinfer, device)


def _case(cell: Cell, flashinfer: Backend | None, device: torch.device) -> Case:
    calls = make_calls(cell, device)
    peers = {"torch_unpaged_unmasked": calls.torch_unpaged}
    if flashinfer is not None:
        peers["flashinfer"] = lambda: calls.ours(flashinfer)
    return Case(_name(cell), cell.kv_bytes, calls.ours, peers)


def _name(cell: Cell) -> str:
    kind = "tree " if cell.is_tree else ""
    return (
        f"{kind}batch={cell.batch} queries={cell.queries} context={cell.context} "
        f"page={cell.page_size}"
    )


if __name__ == "__main__":
    sys.exit(run("attend", cases))
