"""Timing one op by torch and by Triton: microseconds, device kernels, bytes per second."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

from specdecode_kernels.implementation import VARIABLE, Implementation


@dataclass(frozen=True, slots=True)
class Case:
    """One size; `moved_bytes` is what any implementation has to read and write at least."""

    name: str
    moved_bytes: int
    call: Callable[[], object]


def run(
    op: str, cases: Callable[[torch.device], Iterator[Case]], arguments: Sequence[str] | None = None
) -> int:
    """Print one line of JSON per case and implementation; 2 without a GPU."""
    parser = argparse.ArgumentParser(
        prog=f"python -m kernels.{op}", description=f"time {op} by torch and by Triton on a GPU"
    )
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print(f"{op}: no CUDA device; run this on a machine with a GPU", file=sys.stderr)
        return 2
    for case in cases(torch.device("cuda")):
        if options.only in case.name:
            _compare(op, case)
    return 0


def _compare(op: str, case: Case) -> None:
    ways: tuple[Implementation, ...] = ("torch", "triton")
    for way in ways:
        os.environ[VARIABLE] = way
        line = {"op": op, "case": case.name, "implementation": way, **_measure(case, way)}
        print(json.dumps(line), flush=True)


def _measure(case: Case, way: Implementation) -> dict[str, float | int]:
    from triton.testing import do_bench, do_bench_cudagraph

    case.call()  # compiles
    measured: dict[str, float | int] = {"device_kernels": _device_kernels(case.call)}
    # With a cold cache, launches included; and, where the op may be captured, in a graph.
    cold_ms = do_bench(case.call, return_mode="median")
    measured["us"] = round(cold_ms * 1e3, 2)
    measured["gb_per_s"] = round(case.moved_bytes / cold_ms / 1e6, 1)
    if way == "triton":
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            measured["us_in_graph"] = round(do_bench_cudagraph(case.call) * 1e3, 2)
    return measured


def _device_kernels(call: Callable[[], object]) -> int:
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    kinds = (event for event in profiler.events() or () if event.device_type.name == "CUDA")
    return sum(1 for _ in kinds)
