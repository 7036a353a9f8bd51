"""Small kernels of a layer: what fewer launches save, and what dependent launches save.

The kernels of `LAYERS` layers run one after another in one graph, without the maps and attention
between them, so that launches are all that differs.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
from torch import Tensor

from bench.gpu.context import Context
from bench.gpu.record import Row
from bench.gpu.targets import FASTER, SAME_BITS
from specdecode_kernels import Backend, LayerKV
from specdecode_kernels.testing import backend_of
from specdecode_kernels.triton.dependent_launch import HOPPER, switch
from specdecode_kernels.triton.tiles import is_interpreted

LAYERS = 32
ROWS = (1, 8, 64)
Q_HEADS, KV_HEADS, DIM, INNER = 32, 8, 128, 14336
POOL_ROWS = 1 << 14
TURNS = 7


@dataclass(frozen=True, slots=True, eq=False)
class LayerRows:
    """What the small kernels of a layer of an 8B shape read and write, for some rows."""

    ops: Backend
    x: Tensor  # [rows, hidden], and so is the update
    update: Tensor
    weight: Tensor  # [hidden]
    qkv: Tensor  # [rows, heads, dim]
    angles: tuple[Tensor, Tensor]
    gate_up: Tensor  # [rows, 2 * inner]
    kv: LayerKV
    slots: Tensor  # [rows] i64

    @classmethod
    def draw(cls, ops: Backend, rows: int, device: torch.device) -> "LayerRows":
        """Draw normal numbers, the same for the same number of rows."""
        torch.manual_seed(rows)
        half = partial(torch.randn, device=device, dtype=torch.bfloat16)
        hidden, angles = Q_HEADS * DIM, torch.randn(rows, DIM // 2, device=device)
        k, v = (half(POOL_ROWS, KV_HEADS, DIM) for _ in range(2))
        return cls(
            *(ops, half(rows, hidden), half(rows, hidden), half(hidden)),
            half(rows, Q_HEADS + 2 * KV_HEADS, DIM),
            (angles.cos(), angles.sin()),
            half(rows, 2 * INNER),
            LayerKV(k, v),
            torch.arange(rows, device=device) * 7,
        )

    def run(self, *, is_fused: bool) -> list[Tensor]:
        """Run the small kernels of all layers; return what the last of them wrote."""
        written: list[Tensor] = []
        for _ in range(LAYERS):
            summed, normed = self.ops.add_rms_norm(self.x, self.update, self.weight, 1e-5)
            written = [summed, normed, *self._turn_and_store(is_fused=is_fused)]
            written += self.ops.add_rms_norm(summed, self.update, self.weight, 1e-5)
            written.append(self.ops.silu_and_mul(*self.gate_up.chunk(2, dim=-1)))
        return written

    def _turn_and_store(self, *, is_fused: bool) -> tuple[Tensor, Tensor]:
        q, k, v = torch.split(self.qkv, [Q_HEADS, KV_HEADS, KV_HEADS], dim=1)
        if is_fused:
            return self.ops.rope_and_store_kv(self.kv, self.slots, q, k, v, *self.angles)
        q, k = self.ops.apply_rope(q, k, *self.angles)
        self.ops.store_kv(self.kv, self.slots, k, v)
        return q, k


@dataclass(frozen=True, slots=True)
class Way:
    """How the kernels of a layer are launched."""

    name: str
    is_fused: bool
    is_dependent: bool

    def run(self, layer: LayerRows) -> list[Tensor]:
        """Run the layers' kernels; return what the last of them wrote."""
        switch(is_on=self.is_dependent)
        try:
            return layer.run(is_fused=self.is_fused)
        finally:
            switch(is_on=False)


PLAIN = Way("rotation and store apart", is_fused=False, is_dependent=False)
FUSED = Way("rotation and store in one launch", is_fused=True, is_dependent=False)
DEPENDENT = Way("one launch, dependent launches", is_fused=True, is_dependent=True)


def measure(context: Context) -> Iterator[Row]:
    """Compare one launch with two, and dependent launches with plain ones, by turns."""
    ops = backend_of("triton", context.device, torch.bfloat16)
    capability = torch.cuda.get_device_capability(context.device)
    has_dependent = capability >= HOPPER and not is_interpreted()
    ways = (PLAIN, FUSED, DEPENDENT) if has_dependent else (PLAIN, FUSED)
    for rows in ROWS[:1] if context.is_dry else ROWS:
        name = f"small kernels of {LAYERS} layers, {rows} rows"
        yield from _rows(context, name, ways, partial(LayerRows.draw, ops, rows, context.device))


def _rows(
    context: Context, name: str, ways: tuple[Way, ...], draw: Callable[[], LayerRows]
) -> Iterator[Row]:
    written = [_written(way, draw()) for way in ways]
    drawn = [draw() for _ in ways]
    took: list[list[float]] = [[] for _ in ways]
    for _ in range(1 if context.is_dry else TURNS):
        for way, layer, times in zip(ways, drawn, took, strict=True):
            times.append(context.time_us(partial(way.run, layer)))
    plain = median(took[0])
    for way, times, result in zip(ways, took, written, strict=True):
        note = f"{min(times):.1f} to {max(times):.1f} µs in {len(times)} turns"
        yield Row(f"{name}: {way.name}", median(times), "µs", note=note)
        if way is PLAIN:
            continue
        yield Row(f"{name}: {way.name}, to apart", median(times) / plain, "x", target=FASTER)
        unequal = sum(not torch.equal(a, b) for a, b in zip(result, written[0], strict=True))
        yield Row(f"{name}: {way.name}, unequal results", unequal, "", target=SAME_BITS)


def _written(way: Way, layer: LayerRows) -> list[Tensor]:
    return [*way.run(layer), layer.kv.k, layer.kv.v]
