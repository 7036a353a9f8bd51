"""Compares the experts op in C with the same maps one by one; the last line is JSON.

The limit is the CPU time of the linear op for every expert that has rows, with as many rows, and
without sorting, gates and the weighted sum. Blocks of both alternate in one process.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from specdecode_kernels import (
    Backend,
    ExpertRouting,
    ExpertWeights,
    GatedActivation,
    PackedWeight,
)
from specdecode_kernels.testing import backend_of

CPU = torch.device("cpu")
SILU = GatedActivation("silu")
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ROWS = (1, 8, 64)


@dataclass(frozen=True, slots=True)
class MixtureSizes:
    """One layer; by default half the widths of Qwen3-30B-A3B and a quarter of its experts."""

    experts: int = 32
    top_k: int = 8
    hidden: int = 1024
    inner: int = 384


DEFAULT = MixtureSizes()


class MixtureLayer:
    """Packed weights of all experts, together and one by one."""

    def __init__(self, ops: Backend, sizes: MixtureSizes, dtype: torch.dtype) -> None:
        self.ops = ops
        self.sizes = sizes
        self.dtype = dtype
        gate_up = self._draw(sizes.experts, 2 * sizes.inner, sizes.hidden)
        down = self._draw(sizes.experts, sizes.hidden, sizes.inner)
        self.together = ExpertWeights(self._pack(gate_up), self._pack(down))
        self.alone = [(self._pack(a), self._pack(b)) for a, b in zip(gate_up, down, strict=True)]

    def calls(self, rows: int) -> tuple[Callable[[], object], Callable[[], object]]:
        """Return the op on random rows, and the maps that its experts need."""
        sizes = self.sizes
        scores = torch.rand(rows, sizes.experts, generator=torch.Generator().manual_seed(rows))
        ids = scores.argsort(dim=1)[:, : sizes.top_k].int().contiguous()
        routing = ExpertRouting(ids, torch.full(ids.shape, 1 / sizes.top_k))
        x = self._draw(rows, sizes.hidden)
        counts = ids.flatten().long().bincount(minlength=sizes.experts).tolist()
        needed = [
            (maps, self._draw(count, sizes.hidden), self._draw(count, sizes.inner))
            for maps, count in zip(self.alone, counts, strict=True)
            if count
        ]

        def compute_maps() -> None:
            for (gate_up, down), wide, narrow in needed:
                self.ops.linear(wide, gate_up, None)
                self.ops.linear(narrow, down, None)

        return lambda: self.ops.experts(x, routing, self.together, SILU), compute_maps

    def _draw(self, *shape: int) -> Tensor:
        generator = torch.Generator().manual_seed(sum(shape))
        return (torch.randn(shape, generator=generator) / math.sqrt(shape[-1])).to(self.dtype)

    def _pack(self, weight: Tensor) -> PackedWeight:
        assert self.ops.pack_weight is not None
        return self.ops.pack_weight(weight)


def compare(layer: MixtureLayer, rows: int, blocks: int, calls: int) -> dict[str, float]:
    """Return the medians of CPU milliseconds of both, and of their ratio, over blocks of calls."""
    op, maps = layer.calls(rows)
    times = [(_block_ms(maps, calls), _block_ms(op, calls)) for _ in range(blocks + 1)][1:]
    return {
        "op_ms": round(statistics.median(ours for _, ours in times), 4),
        "maps_ms": round(statistics.median(limit for limit, _ in times), 4),
        "of_limit": round(statistics.median(limit / ours for limit, ours in times), 3),
    }


def _block_ms(call: Callable[[], object], calls: int) -> float:
    start = time.process_time()
    for _ in range(calls):
        call()
    return (time.process_time() - start) / calls * 1000


def main(arguments: list[str] | None = None, sizes: MixtureSizes = DEFAULT) -> int:
    """Print a table, write the result if asked to, and print it as JSON."""
    parser = argparse.ArgumentParser(prog="experts_bench", description=__doc__)
    parser.add_argument("--blocks", type=int, default=41, help="Pairs of blocks.")
    parser.add_argument("--calls", type=int, default=4, help="Calls of each block.")
    parser.add_argument("--threads", type=int, default=1, help="Threads of torch.")
    parser.add_argument("--result", type=Path, help="File for the result.")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    found: dict[str, dict[str, float]] = {}
    for name, dtype in TYPES.items():
        layer = MixtureLayer(backend_of("cpu", CPU, dtype), sizes, dtype)
        for rows in ROWS:
            figures = compare(layer, rows, options.blocks, options.calls)
            found[f"{name}, {rows} rows"] = figures
            print(f"{name:9} {rows:3} rows  {figures}", flush=True)
    report = json.dumps({"threads": options.threads, "blocks": options.blocks, "figures": found})
    if options.result is not None:
        options.result.write_text(report + "\n", encoding="utf-8")
    print(report)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
