"""`python -m kernels.attend`: decode, verify, tree and extend attention beside memory and peers.

A line of JSON each: microseconds, share of the copy bandwidth that the keys and values are read
at, and what a verify costs over the decode of the same batch.
"""

import argparse
import json
import math
import sys
from dataclasses import asdict, dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from kernels.timing import copy_bytes_per_s, demand_gpu, machine, time_us
from specdecode_kernels import AttentionBackend, AttentionLayout, Tail, attend, choose_backend


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement, at the head sizes of an 8B Llama."""

    batch: int
    queries: int
    context: int
    page_size: int = 16
    q_heads: int = 32
    kv_heads: int = 8
    dim: int = 128
    is_tree: bool = False

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values that have to be read once."""
        return 2 * self.batch * self.context * self.kv_heads * self.dim * 2


def cells(is_quick: bool) -> list[Cell]:
    """List what is measured."""
    if is_quick:
        return [Cell(8, queries, 4096) for queries in (1, 8)]
    found = [
        Cell(batch, queries, context, page_size)
        for batch in (1, 8, 64)
        for context in (1024, 4096, 32768)
        for page_size in (1, 16)
        for queries in (1, 2, 4, 8, 16)
        if batch * context <= 1 << 18
    ]
    found += [Cell(batch, 16, 4096, is_tree=True) for batch in (1, 8)]
    return [*found, Cell(1, 2048, 4096), Cell(4, 512, 4096)]


def measure(cell: Cell, backend: AttentionBackend, copy_rate: float) -> dict[str, object]:
    """Time one cell, and torch's own attention over the same rows lying in a row, unmasked."""
    generator = torch.Generator("cuda").manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device="cuda").to(torch.bfloat16)

    pages = -(-cell.context // cell.page_size)
    ids = 1 + torch.randperm(cell.batch * pages, generator=generator, device="cuda")
    pool_rows = (1 + cell.batch * pages) * cell.page_size
    k_pool, v_pool = (normal(pool_rows, cell.kv_heads, cell.dim) for _ in range(2))
    q = normal(cell.batch * cell.queries, cell.q_heads, cell.dim)
    ahead = 0 if cell.is_tree else cell.queries - 1
    visible = torch.arange(cell.context - ahead, cell.context + 1, device="cuda")
    layout = AttentionLayout(
        ids.view(cell.batch, pages),
        cell.page_size,
        (cell.queries,) * cell.batch,
        visible.expand(cell.queries).repeat(cell.batch),
        cell.context,
    )
    tail = None
    if cell.is_tree:
        mask = torch.ones(cell.batch, cell.queries, cell.queries, device="cuda").tril() > 0
        k, v = (normal(cell.batch, cell.queries, cell.kv_heads, cell.dim) for _ in range(2))
        tail = Tail(k, v, mask)
    took_us = time_us(lambda: attend(q, k_pool, v_pool, layout, tail, backend=backend))
    dense = [normal(cell.batch, cell.kv_heads, cell.context, cell.dim) for _ in range(2)]
    folded = q.view(cell.batch, cell.queries, cell.q_heads, cell.dim).transpose(1, 2)
    peer_us = time_us(lambda: scaled_dot_product_attention(folded, *dense, enable_gqa=True))
    floor_us = 1e6 * cell.kv_bytes / copy_rate
    return {
        **asdict(cell),
        "us": round(took_us, 2),
        "share_of_copy_rate": round(floor_us / took_us, 3),
        "sdpa_unpaged_us": round(peer_us, 2),
    }


def main() -> int:
    """Print the machine, then a line per cell."""
    parser = argparse.ArgumentParser(prog="kernels.attend")
    parser.add_argument("--backend", default="triton", choices=("triton", "torch", "flashinfer"))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    device = demand_gpu()
    print(json.dumps(machine()), flush=True)
    backend, _ = choose_backend(options.backend, device, torch.bfloat16, 128)
    copy_rate, decode_us = copy_bytes_per_s(), math.nan
    for cell in cells(options.quick):
        line = measure(cell, backend, copy_rate)
        if cell.queries == 1:
            decode_us = float(str(line["us"]))
        elif not cell.is_tree and cell.queries <= 16:
            line["times_decode"] = round(float(str(line["us"])) / decode_us, 3)
        print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
