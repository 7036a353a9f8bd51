"""Linear layers, decode steps and prefills next to what the machine can do at most.

The limit of a linear layer is the longer of reading its weights once and of its multiply-adds, at
the rates that the same repeat measures (`bench.cpu.peers.floors`); that of a decode step is the
reading of the weights, that of a prefill its multiply-adds, those of attention included. All are
CPU times per thread. The model is so large that its weights of 4 bits exceed twice the last cache.
"""

import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from bench.cpu.peers.epsilon_pair import STRONG, Size, write_pair
from bench.cpu.peers.floors import Floors, Limits, l3_bytes
from checks.lossless.published import PUBLISHED, write_published
from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.startup.build import build_core
from specdecode_engine.startup.profiling import decoding
from specdecode_kernels import Backend, PackedWeight
from specdecode_kernels.testing import backend_of

CPU = torch.device("cpu")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ROWS = (1, 8, 64)
BATCHES = (1, 8)
PROMPTS = (512, 2048)
WIDTH_STEP = 256
LAYERS = 12
CACHE_BYTES = 512 * 2**20
WARM_UP = 3
ROUNDED = ("int8", "int4")
FLOATS = {"float8-128": "w8a16", "mxfp4": "w4a16", "nvfp4": "w4a16"}
"""Weights of floating-point numbers, and integers of as many bits, heads in bfloat16 with both."""

RUNS = 3
"""Of which the least counts, as for the machine's rates."""


@dataclass(frozen=True, slots=True)
class LimitsExtent:
    """How much is measured, and on what."""

    size: Size
    repeats: int
    steps: int  # of each batch size in a repeat, of which the least counts
    prompts: tuple[int, ...] = PROMPTS
    least_bytes: int = 0  # of the weights of all linear layers


def extent(*, is_quick: bool) -> LimitsExtent:
    """Return sizes for this machine's last cache."""
    return LimitsExtent(
        size_beyond(2 * l3_bytes()),
        repeats=3 if is_quick else 9,
        steps=8,
        prompts=PROMPTS[:1] if is_quick else PROMPTS,
        least_bytes=4 * l3_bytes(),
    )


def size_beyond(least_bytes: int) -> Size:
    """Return the smallest model whose weights of 4 bits and their scales take more bytes."""
    width = WIDTH_STEP
    while (size := _size_of(width)).streamed * 9 // 16 <= least_bytes:
        width += WIDTH_STEP
    return size


def _size_of(width: int) -> Size:
    heads = width // 64
    return Size(
        LAYERS, width, heads=heads, kv_heads=heads // 4, inner=11 * width // 4, context=4096
    )


def measure_limits(extent: LimitsExtent) -> dict[str, object]:
    """Return the shares of the limits, by type, and the limits themselves."""
    threads = torch.get_num_threads()
    machine = Limits(threads)
    samples: list[tuple[str, str, float]] = []
    floors: list[Floors] = []
    with tempfile.TemporaryDirectory() as name:
        target, _ = write_pair(Path(name), extent.size, STRONG)
        measured: list[LinearLayers | EngineSteps | QuantizedSteps] = []
        for dtype in DTYPES:
            measured += [LinearLayers(extent, dtype), EngineSteps(target, extent, dtype)]
        measured.append(QuantizedSteps(target, extent))
        for _ in tqdm(range(extent.repeats), desc="limits"):
            floors.append(machine.measure())
            for one in measured:
                samples += one.measure(floors[-1], threads)
    calls = next(one.calls_per_step() for one in measured if isinstance(one, EngineSteps))
    return {
        **_by_figure(samples),
        "spread": _spread(samples),
        "calls_per_step": calls,
        "read_limit_gb_s": _median(floor.read_gb_s for floor in floors),
        "product_limit_gflop_s": _median(floor.product_gflop_s for floor in floors),
        "pair_limit_gflop_s": _median(floor.pair_gflop_s for floor in floors),
    }


def _by_figure(samples: list[tuple[str, str, float]]) -> dict[str, object]:
    """Return medians: by figure, then by key if there is one."""
    medians: dict[str, dict[str, object]] = {}
    for figure, key, _ in samples:
        values = [value for *both, value in samples if both == [figure, key]]
        medians.setdefault(figure, {})[key] = _median(values)
    return {figure: by_key.get("", by_key) for figure, by_key in medians.items()}


def _spread(samples: list[tuple[str, str, float]]) -> dict[str, tuple[float, float]]:
    """Return minimum and maximum of the figures that have no keys."""
    by_figure: dict[str, list[float]] = {}
    for figure, key, value in samples:
        if not key:
            by_figure.setdefault(figure, []).append(value)
    return {name: (round(min(each), 3), round(max(each), 3)) for name, each in by_figure.items()}


def _median(values: "Iterator[float] | list[float]") -> float:
    return round(statistics.median(values), 3)


class LinearLayers:
    """Packed weights of one type, as many as exceed the caches."""

    def __init__(self, extent: LimitsExtent, dtype: str) -> None:
        self._dtype = dtype
        self._ops = backend_of("cpu", CPU, DTYPES[dtype])
        self._weights = list(_packed_weights(self._ops, extent, DTYPES[dtype]))

    def measure(self, floors: Floors, threads: int) -> Iterator[tuple[str, str, float]]:
        """Yield figure, type and share of the limit."""
        for rows in ROWS:
            x = {
                inputs: torch.randn(rows, inputs).to(DTYPES[self._dtype])
                for inputs in {weight.shape[1] for weight in self._weights}
            }
            taken_s = min(cpu_seconds(lambda x=x: self._map(x), threads) for _ in range(RUNS))  # type: ignore[misc]
            limit_s = sum(linear_limit_s(weight, rows, floors) for weight in self._weights)
            yield f"linear{rows}_of_limit", self._dtype, limit_s / taken_s

    def _map(self, x: Mapping[int, torch.Tensor]) -> None:
        for weight in self._weights:
            self._ops.linear(x[weight.shape[1]], weight, None)


def linear_limit_s(weight: PackedWeight, rows: int, floors: Floors) -> float:
    """Return the least time of a linear layer: its bytes or its operations decide."""
    read_s = weight.num_bytes / floors.read_gb_s / 1e9
    operations = 2 * rows * math.prod(weight.shape)
    return max(read_s, operations / floors.products_of(weight.dtype) / 1e9)


def _packed_weights(
    ops: Backend, extent: LimitsExtent, dtype: torch.dtype
) -> Iterator[PackedWeight]:
    """Yield the maps of layer after layer, of the same values but in memory of their own."""
    assert ops.pack_weight is not None
    size = extent.size
    heads = size.hidden + 2 * size.key_heads * size.head_dim
    shapes = [(heads, size.hidden), (size.hidden, size.hidden)]
    shapes += [(2 * size.intermediate, size.hidden), (size.hidden, size.intermediate)]
    plain = [(torch.randn(shape) / math.sqrt(shape[1])).to(dtype) for shape in shapes]
    layers, num_bytes = 0, 0
    while layers < size.layers or num_bytes <= extent.least_bytes:
        for weight in plain:
            packed = ops.pack_weight(weight)
            num_bytes += packed.num_bytes
            yield packed
        layers += 1


class EngineSteps:
    """An engine without a draft, in one type."""

    def __init__(
        self, target: Path, extent: LimitsExtent, dtype: str, quantization: str = "auto"
    ) -> None:
        self._extent = extent
        self._dtype = dtype
        document = {
            "model": {"path": str(target), "dtype": dtype, "quantization": quantization},
            "scheduling": {"max_running_requests": max(BATCHES), "chunked_prefill_tokens": 4096},
            "memory": {"prefix_cache": False, "kv_cache_bytes": CACHE_BYTES},
            "device": "cpu",
            "threads": torch.get_num_threads(),
        }
        self._core = build_core(EngineBoot.model_validate(document))
        self._num_bytes = extent.size.streamed * DTYPES[dtype].itemsize

    def measure(self, floors: Floors, threads: int) -> Iterator[tuple[str, str, float]]:
        """Yield figure, key and share of the limit; the key of a prefill is its tokens."""
        read_s = self._num_bytes / floors.read_gb_s / 1e9
        for batch in BATCHES:
            yield f"step_b{batch}_of_read", self._dtype, read_s / self.step_s(batch, threads)
        figure = "prefill_of_flops" + ("" if self._dtype == "float32" else f"_{self._dtype}")
        for tokens in self._extent.prompts:
            rate = floors.products_of(DTYPES[self._dtype])
            limit_s = prefill_operations(self._extent.size, tokens) / rate / 1e9
            taken_s = min(self._prefill_s(tokens, threads) for _ in range(RUNS))
            yield figure, str(tokens), limit_s / taken_s

    def calls_per_step(self) -> int:
        """Count the calls of Python functions in a step of plain decoding at batch 1."""
        with decoding(self._core, 1, 32):
            for _ in range(WARM_UP):
                self._core.step()
            with _counted_calls() as calls:
                self._core.step()
        return sum(calls)

    def step_s(self, batch: int, threads: int) -> float:
        with decoding(self._core, batch, 32):
            self._core.step()
            return min(cpu_seconds(self._core.step, threads) for _ in range(self._extent.steps))

    def _prefill_s(self, tokens: int, threads: int) -> float:
        prompt = tuple(3 + n % 251 for n in range(tokens))
        self._core.submit(Request("prefill", prompt, SamplingParams(0, 2, 0.0, ignore_eos=True)))
        taken_s = cpu_seconds(self._core.step, threads)
        while self._core.has_work():
            self._core.step()
        return taken_s


class QuantizedSteps:
    """Steps of engines with weights rounded at the start, or as checkpoints store them."""

    def __init__(self, target: Path, extent: LimitsExtent) -> None:
        self._engines = {
            name: EngineSteps(target, extent, "bfloat16", name) for name in ("auto", *ROUNDED)
        }
        for name in PUBLISHED:
            stored = write_published(target, name, target.parent)
            self._engines[name] = EngineSteps(stored, extent, "bfloat16")

    def measure(self, _: Floors, threads: int) -> Iterator[tuple[str, str, float]]:
        """Yield how many times as fast a step at batch 1 is; the figures have no keys."""
        taken_s = {name: one.step_s(1, threads) for name, one in self._engines.items()}
        for name in (*ROUNDED, *PUBLISHED):
            yield f"{name}_vs_bf16", "", taken_s["auto"] / taken_s[name]
        for name, other in FLOATS.items():
            yield f"{name}_vs_{other}", "", taken_s[other] / taken_s[name]


def prefill_operations(size: Size, tokens: int) -> float:
    """Return the floating-point operations of a prompt; the head maps its last token alone."""
    head = size.vocab * size.hidden
    attended = tokens * (tokens + 1) / 2  # pairs of a query and a key
    attention = 4 * size.layers * size.heads * size.head_dim * attended
    return 2 * (tokens * (size.streamed - head) + head) + attention


def cpu_seconds(run: Callable[[], object], threads: int) -> float:
    """Return the CPU time per thread that a call takes."""
    began_s = time.process_time()
    run()
    return (time.process_time() - began_s) / threads


@contextmanager
def _counted_calls() -> Iterator[list[int]]:
    """Note a 1 for every call of a Python function within the body."""
    calls: list[int] = []
    sys.setprofile(lambda frame, event, argument: calls.append(1) if event == "call" else None)
    try:
        yield calls
    finally:
        sys.setprofile(None)
