"""Timing one op by torch and by Triton: microseconds, device kernels, bytes per second."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version

import torch
from torch.profiler import ProfilerActivity, profile

from specdecode_kernels import Backend, choose_backend
from specdecode_kernels.choice import Kernels
from specdecode_kernels.testing import backend_of

NOT_CAPTURED = ("torch", "flashinfer")
"""Backends that synchronize with the host in between, or may."""
COPIED_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Case:
    """One size; `moved_bytes` is what any implementation has to read and write at least.

    `peers` are other people's programs for the same, timed besides.
    """

    name: str
    moved_bytes: int
    call: Callable[[Backend], object]
    peers: Mapping[str, Callable[[], object]] = field(default_factory=dict)


def flashinfer_backend(device: torch.device, dim: int) -> Backend | None:
    """Build FlashInfer's, a peer of ours, where it is installed and runs such heads."""
    try:
        return choose_backend("flashinfer", device, torch.bfloat16, dim).backend
    except ValueError as error:
        print(error, file=sys.stderr)
        return None


def run(
    op: str, cases: Callable[[torch.device], Iterator[Case]], arguments: Sequence[str] | None = None
) -> int:
    """Print the machine, then a line of JSON per case and implementation; 2 without a GPU."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog=f"python -m bench.cpu.kernels.{op}",
        description=f"time {op} by torch and by Triton on a GPU",
    )
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print(f"{op}: no CUDA device; run this on a machine with a GPU", file=sys.stderr)
        return 2
    print(json.dumps(machine()), flush=True)
    for case in cases(torch.device("cuda")):
        if options.only in case.name:
            _compare(op, case)
    return 0


def _compare(op: str, case: Case) -> None:
    ways: tuple[Kernels, ...] = ("torch", "triton")
    for way in ways:
        backend = backend_of(way, torch.device("cuda"), torch.bfloat16)
        _print(op, case, way, partial(case.call, backend))
    for name, call in case.peers.items():
        _print(op, case, name, call)


def _print(op: str, case: Case, way: str, call: Callable[[], object]) -> None:
    measured = _measure(call, case.moved_bytes, in_graph=way not in NOT_CAPTURED)
    line = {"op": op, "case": case.name, "implementation": way, **measured}
    print(json.dumps(line), flush=True)


def _measure(
    call: Callable[[], object], moved_bytes: int, *, in_graph: bool
) -> dict[str, float | int]:
    from triton.testing import do_bench, do_bench_cudagraph

    call()  # compiles
    measured: dict[str, float | int] = {"device_kernels": _device_kernels(call)}
    # With a cold cache, launches included; and, where the op may be captured, in a graph.
    cold_ms = do_bench(call, return_mode="median")
    measured["us"] = round(cold_ms * 1e3, 2)
    measured["gb_per_s"] = round(moved_bytes / cold_ms / 1e6, 1)
    if in_graph:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            measured["us_in_graph"] = round(do_bench_cudagraph(call) * 1e3, 2)
    return measured


def _device_kernels(call: Callable[[], object]) -> int:
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    kinds = (event for event in profiler.events() or () if event.device_type.name == "CUDA")
    return sum(1 for _ in kinds)


def machine() -> dict[str, object]:
    """Name the device, the versions, and the bytes per second that a large copy moves."""
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": version("triton"),
        "copy_gb_per_s": round(copy_bytes_per_s() / 1e9),
    }


def copy_bytes_per_s() -> float:
    """Measure the memory: bytes read and written by a large copy, per second."""
    from triton.testing import do_bench

    source = torch.empty(COPIED_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    took_ms: float = do_bench(lambda: target.copy_(source), return_mode="median")
    return 2 * COPIED_BYTES / (took_ms * 1e-3)
