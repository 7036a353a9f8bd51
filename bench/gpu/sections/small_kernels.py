"""G5: all ops but attention: microseconds in a graph, and launches against torch's."""

import importlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

import torch

from bench.gpu.context import Context
from bench.gpu.record import Row
from bench.gpu.stopwatch import busy_spans
from bench.gpu.targets import FEWER_LAUNCHES, KERNEL_US
from specdecode_kernels import Backend
from specdecode_kernels.choice import Kernels
from specdecode_kernels.testing import backend_of

OPS = (
    "verify_chain",
    "verify_tree",
    "select_tree_nodes",
    "build_tree_mask",
    "gather_accepted",
    "compact_kv",
)
SAMPLING = ("sample", "route_experts")
EXPERTS = ("experts", "linear")
RECURRENT = ("gated_delta", "keep_drafted")
CASES_EACH = 36


class OpCase(Protocol):
    """A size of an op's own benchmark, `bench/cpu/kernels/<op>.py`."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def moved_bytes(self) -> int:
        """What has to be read and written at least."""
        ...

    @property
    def call(self) -> Callable[[Backend], object]:
        """The op on its tensors."""
        ...


def measure(context: Context, ops: Sequence[str] = OPS) -> Iterator[Row]:
    """Time each op's benchmark cases, small batches first."""
    for op in ops:
        cases: Callable[[torch.device], Iterator[OpCase]]
        cases = importlib.import_module(f"bench.cpu.kernels.{op}").cases
        for number, case in enumerate(cases(context.device)):
            if number == (1 if context.is_dry else CASES_EACH) or not context.has_time(2):
                break
            yield from _rows(context, op, case)


def _rows(context: Context, op: str, case: OpCase) -> Iterator[Row]:
    launches, name = {}, f"{op}, {case.name}"
    ways: tuple[Kernels, ...] = ("torch", "triton")
    calls = {
        way: partial(case.call, backend_of(way, context.device, torch.bfloat16)) for way in ways
    }
    for way, call in calls.items():
        call()  # compiles
        launches[way] = len(busy_spans(call, context.device))
    took_us = context.time_us(calls["triton"])
    floors = context.floors
    moved_us = 1e6 * case.moved_bytes / floors.memory_bytes_per_s
    target = KERNEL_US if moved_us < floors.launch_us else None
    floor_us = max(floors.launch_us, moved_us)
    yield Row.of_time(name, took_us, "µs", floor_us, target)
    if launches["triton"]:
        fewer = launches["torch"] / launches["triton"]
        note = f"{launches['torch']} and {launches['triton']}"
        name = f"{name}: launches of torch to ours"
        yield Row(name, fewer, "x", target=FEWER_LAUNCHES, note=note)
