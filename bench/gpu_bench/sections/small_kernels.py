"""G5: the ops beside attention: microseconds in a graph, and launches beside those of torch."""

import importlib
from collections.abc import Callable, Iterator
from typing import Protocol

import torch

from gpu_bench.context import Context
from gpu_bench.record import Row
from gpu_bench.stopwatch import busy_spans
from gpu_bench.targets import FEWER_LAUNCHES, KERNEL_US
from gpu_bench.ways import computed_by
from specdecode_kernels.implementation import Implementation

OPS = ("walk_chain", "walk_tree", "select_nodes", "link_nodes", "take_path", "move_kv", "choose")
CASES_EACH = 5


class OpCase(Protocol):
    """A size of an op's own benchmark, `bench/kernels/<op>.py`."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def moved_bytes(self) -> int:
        """What has to be read and written at least."""
        ...

    @property
    def call(self) -> Callable[[], object]:
        """The op on its tensors."""
        ...


def measure(context: Context) -> Iterator[Row]:
    """Time each op's benchmark cases; the first ones are batches of up to 16."""
    for op in OPS:
        cases: Callable[[torch.device], Iterator[OpCase]]
        cases = importlib.import_module(f"kernels.{op}").cases
        for number, case in enumerate(cases(context.device)):
            if number == (1 if context.is_dry else CASES_EACH) or not context.has_time(2):
                break
            yield from _rows(context, op, case)


def _rows(context: Context, op: str, case: OpCase) -> Iterator[Row]:
    launches, name = {}, f"{op}, {case.name}"
    ways: tuple[Implementation, ...] = ("torch", "triton")
    for way in ways:
        with computed_by(way):
            case.call()  # compiles
            launches[way] = len(busy_spans(case.call, context.device))
    with computed_by("triton"):
        took_us = context.time_us(case.call)
    floors = context.floors
    floor_us = max(floors.launch_us, 1e6 * case.moved_bytes / floors.copy_bytes_per_s)
    yield Row.of_time(name, took_us, "µs", floor_us, KERNEL_US)
    if launches["triton"]:
        fewer = launches["torch"] / launches["triton"]
        note = f"{launches['torch']} and {launches['triton']}"
        name = f"{name}: launches of torch to ours"
        yield Row(name, fewer, "x", target=FEWER_LAUNCHES, note=note)
