"""Compares the experts op in C with what the machine can do at most; the last line is JSON.

The limit of one product is the longer of reading its weights once and of its multiply-adds, at the
rates of the same repeat (`bench.cpu.peers.floors`); that of the op is the sum over the products
of all experts that have rows. Each repeat also times the linear op for each of those products, one
by one, and the choice of experts from a router's logits. All are CPU times.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bench.cpu.peers.floors import Floors, Limits
from specdecode_kernels import (
    Backend,
    ExpertWeights,
    GatedActivation,
    PackedWeight,
    RoutingConfig,
)
from specdecode_kernels.testing import backend_of

CPU = torch.device("cpu")
SILU = GatedActivation("silu")
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ROWS = (1, 8, 64, 512)
RUNS = 3
"""Of which the least counts, as for the machine's rates."""


@dataclass(frozen=True, slots=True)
class MixtureSizes:
    """One layer; by default half the widths of Qwen3-30B-A3B and a quarter of its experts."""

    experts: int = 32
    top_k: int = 8
    hidden: int = 1024
    inner: int = 384


DEFAULT = MixtureSizes()


@dataclass(frozen=True, slots=True, eq=False)
class MixtureCalls:
    """The op, its maps one by one, and the choice of its experts."""

    op: Callable[[], object]
    maps: Callable[[], object]
    router: Callable[[], object]
    rows_by_expert: tuple[int, ...]  # of those that have rows


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

    def calls(self, rows: int) -> "MixtureCalls":
        """Return the op on random rows, and what it consists of."""
        sizes = self.sizes
        logits = torch.randn(rows, sizes.experts, generator=torch.Generator().manual_seed(rows))
        config = RoutingConfig(top_k=sizes.top_k, scores="softmax", is_normalized=True)
        routing = self.ops.route_experts(logits, config, None)
        x = self._draw(rows, sizes.hidden)
        counts = routing.ids.flatten().long().bincount(minlength=sizes.experts).tolist()
        needed = [
            (maps, self._draw(count, sizes.hidden), self._draw(count, sizes.inner))
            for maps, count in zip(self.alone, counts, strict=True)
            if count
        ]

        def compute_maps() -> None:
            for (gate_up, down), wide, narrow in needed:
                self.ops.linear(wide, gate_up, None)
                self.ops.linear(narrow, down, None)

        return MixtureCalls(
            op=lambda: self.ops.experts(x, routing, self.together, SILU),
            maps=compute_maps,
            router=lambda: self.ops.route_experts(logits, config, None),
            rows_by_expert=tuple(count for count in counts if count),
        )

    def limit_ms(self, rows_by_expert: Sequence[int], rates: Floors) -> float:
        """Return the least time of the products of experts with these rows."""
        sizes = self.sizes
        total_ms = 0.0
        for rows in rows_by_expert:
            for weights in (2 * sizes.inner * sizes.hidden, sizes.inner * sizes.hidden):
                read_ms = weights * self.dtype.itemsize / rates.read_gb_s / 1e6
                product_ms = 2 * rows * weights / rates.products_of(self.dtype) / 1e6
                total_ms += max(read_ms, product_ms)
        return total_ms

    def _draw(self, *shape: int) -> Tensor:
        generator = torch.Generator().manual_seed(sum(shape))
        return (torch.randn(shape, generator=generator) / math.sqrt(shape[-1])).to(self.dtype)

    def _pack(self, weight: Tensor) -> PackedWeight:
        assert self.ops.pack_weight is not None
        return self.ops.pack_weight(weight)


def compare(layer: MixtureLayer, repeats: int, machine: Limits) -> dict[int, dict[str, float]]:
    """Return by rows the medians of CPU milliseconds and of ratios over repeats, after a first."""
    calls = {rows: layer.calls(rows) for rows in ROWS}
    found: dict[int, list[tuple[float, ...]]] = {rows: [] for rows in ROWS}
    for _ in range(repeats + 1):
        rates = machine.measure()
        for rows, of in calls.items():
            op, maps, router = _least_ms(of.op, of.maps, of.router)
            limit = layer.limit_ms(of.rows_by_expert, rates)
            found[rows].append((op, limit / op, maps / op, router / op))
    names = ("op_ms", "of_limit", "of_maps", "router_share")
    return {
        rows: {
            name: round(statistics.median(values), 4)
            for name, values in zip(names, zip(*measured[1:], strict=True), strict=True)
        }
        for rows, measured in found.items()
    }


def _least_ms(*calls: Callable[[], object]) -> list[float]:
    """Return the least CPU time of each of several calls, which take turns."""
    times_ms: list[list[float]] = [[] for _ in calls]
    for _ in range(RUNS):
        for call, measured in zip(calls, times_ms, strict=True):
            start = time.process_time()
            call()
            measured.append((time.process_time() - start) * 1000)
    return [min(measured) for measured in times_ms]


def main(arguments: list[str] | None = None, sizes: MixtureSizes = DEFAULT) -> int:
    """Print a table, write the result if asked to, and print it as JSON."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="experts_bench", description=__doc__)
    parser.add_argument("--repeats", type=int, default=41, help="Of all measurements.")
    parser.add_argument("--threads", type=int, default=1, help="Threads of torch.")
    parser.add_argument("--result", type=Path, help="File for the result.")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    found: dict[str, dict[str, float]] = {}
    machine = Limits()
    for name, dtype in TYPES.items():
        layer = MixtureLayer(backend_of("cpu", CPU, dtype), sizes, dtype)
        for rows, figures in compare(layer, options.repeats, machine).items():
            found[f"{name}, {rows} rows"] = figures
            print(f"{name:9} {rows:3} rows  {figures}", flush=True)
    report = json.dumps({"threads": options.threads, "repeats": options.repeats, "figures": found})
    if options.result is not None:
        options.result.write_text(report + "\n", encoding="utf-8")
    print(report)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
