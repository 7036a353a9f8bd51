"""Decode steps of 8 requests with LoRA adapters, next to those of an engine without any.

Eight adapters of rank 16 change all linear maps of the layers of the model of section `limits`. A
step that reads the weights of the base and of all adapters once would take
(base + adapters) / base of the time without adapters; `reached` is the share of that rate.
"""

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from tqdm import tqdm

from bench.cpu.engine.limits import CACHE_BYTES, DTYPES, cpu_seconds
from bench.cpu.peers.epsilon_pair import STRONG, Size, write_pair
from checks.harness.adapter_files import ATTENTION, MLP, random_factors, write_adapter
from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.engine import EngineCore
from specdecode_engine.startup.build import build_core

COUNT, RANK = 8, 16
PROMPT_TOKENS = 32
WARM_UP = 2
NAMES = tuple(f"adapter-{number}" for number in range(COUNT))
LOADS: dict[str, Sequence[str]] = {
    "loaded, none used": [""] * COUNT,
    "one in 1 of 8 requests": [NAMES[0], *[""] * (COUNT - 1)],
    "one for all 8": [NAMES[0]] * COUNT,
    "8 different": NAMES,
}


def measure_adapters(size: Size, repeats: int, steps: int) -> dict[str, object]:
    """Return rates relative to an engine without adapters, by type and load.

    Args:
        steps: of each load in a repeat, of which the least time counts.
    """
    with tempfile.TemporaryDirectory() as name:
        target, _ = write_pair(Path(name), size, STRONG)
        adapters = _write_adapters(target, Path(name))
        return {dtype: _measure(target, adapters, size, dtype, repeats, steps) for dtype in DTYPES}


def _measure(
    target: Path, adapters: dict[str, str], size: Size, dtype: str, repeats: int, steps: int
) -> dict[str, object]:
    plain, loaded = _engine(target, dtype, {}), _engine(target, dtype, adapters)
    taken_s: dict[str, list[float]] = {name: [] for name in ("plain", *LOADS)}
    for _ in tqdm(range(repeats), desc=f"adapters {dtype}"):
        taken_s["plain"].append(_step_s(plain, LOADS["loaded, none used"], steps))
        for name, load in LOADS.items():
            taken_s[name].append(_step_s(loaded, load, steps))
    bytes_of_adapters = COUNT * RANK * _inputs_and_outputs(size) * 4
    base_bytes = size.streamed * DTYPES[dtype].itemsize
    share = base_bytes / (base_bytes + bytes_of_adapters)
    rates = {name: _ratio(taken_s["plain"], taken_s[name]) for name in LOADS}
    return {
        "rate_without": {name: round(rate, 3) for name, rate in rates.items()},
        "different_vs_one": round(_ratio(taken_s["one for all 8"], taken_s["8 different"]), 3),
        "base_of_all_bytes": round(share, 3),
        "reached": round(rates["8 different"] / share, 3),
    }


def _ratio(own: Sequence[float], other: Sequence[float]) -> float:
    """Median of the ratios within each repeat."""
    return statistics.median(a / b for a, b in zip(own, other, strict=True))


def _inputs_and_outputs(size: Size) -> int:
    """Numbers of a factor of rank 1 of all adapted maps."""
    hidden, inner, keys = size.hidden, size.intermediate, size.key_heads * size.head_dim
    attention = (hidden + hidden) * 2 + (hidden + keys) * 2
    return size.layers * (attention + 3 * (hidden + inner))


def _write_adapters(target: Path, folder: Path) -> dict[str, str]:
    found = {}
    for number, name in enumerate(NAMES):
        tensors = random_factors(target, (*ATTENTION, *MLP), rank=RANK, seed=number, size=0.01)
        found[name] = str(write_adapter(folder / name, tensors, {"r": RANK}))
    return found


def _engine(target: Path, dtype: str, adapters: dict[str, str]) -> EngineCore:
    document = {
        "model": {"path": str(target), "dtype": dtype},
        "scheduling": {"max_running_requests": COUNT},
        "memory": {"prefix_cache": False, "kv_cache_bytes": CACHE_BYTES},
        "device": "cpu",
        "threads": torch.get_num_threads(),
        "adapters": {"modules": adapters},
    }
    return build_core(EngineBoot.model_validate(document))


def _step_s(core: EngineCore, adapters: Sequence[str], steps: int) -> float:
    """Return the least CPU time per thread of a decode step of one request for each adapter."""
    params = SamplingParams(0, WARM_UP + steps + 2, 0.0, ignore_eos=True)
    prompt = tuple(3 + place % 251 for place in range(PROMPT_TOKENS))
    for number, adapter in enumerate(adapters):
        core.submit(Request(str(number), prompt, params, adapter=adapter))
    while len(core.scheduler.running) < len(adapters) or core.scheduler.waiting:
        core.step()
    for _ in range(WARM_UP):
        core.step()
    least_s = min(cpu_seconds(core.step, torch.get_num_threads()) for _ in range(steps))
    while core.has_work():
        core.step()
    return least_s
