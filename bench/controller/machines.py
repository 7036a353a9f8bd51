"""The five machines of the verify budget: what a step takes by verified rows; each with its source.

Only the CPU's curve was measured for this project. No figure here was measured on a GPU.
"""

import json
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from controller.profiles import Profile, h100_dense_8b

CPU_CURVE = Path(__file__).resolve().parents[1] / "results" / "cost-curve-cpu-2026-11.json"


@dataclass(frozen=True, slots=True)
class Gpu:
    """Data sheet of a GPU: bytes and multiplications in bfloat16 per second, dense."""

    bytes_per_s: float
    flops: float


H100 = Gpu(3.35e12, 989e12)
B200 = Gpu(8.0e12, 2250e12)
L4 = Gpu(0.3e12, 121e12)


def cpu() -> Profile:
    """A Llama of 82 M parameters in float32 on one core, by `controller.measure_cpu`."""
    curve = json.loads(CPU_CURVE.read_text())
    drafting = curve["draft_step_ms"]
    return Profile(
        "cpu",
        _linear(curve["rows"], curve["target_ms"]),
        _linear(drafting["batch_sizes"], drafting["ms"]),
        1e-9 * curve["kv_token_ns"],
        1e-3 * curve["draft_prompt_row_ms"],
        late_steps=0,
    )


def h100() -> Profile:
    """The same as in `profiles`."""
    return replace(h100_dense_8b(), name="h100")


def b200() -> Profile:
    """Derived, see `derive`."""
    return derive("b200", B200)


def l4() -> Profile:
    """Derived, see `derive`. KV of 256 long contexts does not fit its 24 GB: a cost curve only."""
    return derive("l4", L4)


def derive(name: str, gpu: Gpu) -> Profile:
    """Scale the H100's fit by data sheets, at equal efficiency: derived, not measured.

    Weights, KV and drafting follow the bandwidth of memory, rows the multiplications; the host
    takes the same 0.3 ms.
    """
    base, host_s = h100_dense_8b(), 0.3e-3
    by_bytes, by_flops = H100.bytes_per_s / gpu.bytes_per_s, H100.flops / gpu.flops
    return Profile(
        name,
        lambda rows: host_s + 5.886e-3 * by_bytes + 21.01e-6 * by_flops * rows,
        lambda batch_size: base.draft_step_s(batch_size) * by_bytes,
        base.kv_token_s * by_bytes,
        base.draft_row_s * by_flops,
        late_steps=1,
    )


@dataclass(frozen=True, slots=True)
class Published:
    """Tokens per second by concurrency; vllm#52362: DeepSeek-V4-Flash with DSpark, on AMD."""

    concurrency: tuple[int, ...] = (4, 8, 16, 32, 64, 128, 256)
    none: tuple[int, ...] = (382, 729, 1343, 2393, 4095, 6341, 8879)
    fixed_7: tuple[int, ...] = (970, 1763, 2910, 4756, 6712, 8779, 7852)
    adaptive: tuple[int, ...] = (902, 1617, 2774, 4501, 7144, 10356, 13325)


PUBLISHED = Published()

PUBLISHED_SHARE, PUBLISHED_GOOD, PUBLISHED_BAD = 0.56, 0.98, 0.16
"""Requests whose drafts the target accepts well, and conditional rates of both kinds: an assumption
under which a step of seven drafted tokens emits 4.7. The published columns do not contain it. They
bound it: with 5.3 tokens or more no policy could reach the adaptive column at 256, even one that
verified nothing but what is accepted; and without requests that differ none comes near."""


def vl52362() -> Profile:
    """Fitted to the columns `none` and `fixed_7` of `PUBLISHED`: the largest error is 4 %.

    A constant, the experts that few rows leave unread, and a slope that rises after 1024 rows; a
    block costs the same to draft whatever is verified. The column `adaptive` took no part.
    """

    def target_s(rows: int) -> float:
        experts_s = 5.712e-3 * (1.0 - math.exp(-rows / 96.0))
        return 10.448e-3 + experts_s + 46.8e-6 * rows + 35.4e-6 * max(rows - 1024, 0)

    return Profile(
        "vl52362", target_s, lambda batch_size: 5.083e-3, 0.0, 0.0, late_steps=1, drafts_blocks=True
    )


def all_machines() -> tuple[Profile, ...]:
    """Every machine, in the order of the report."""
    return (cpu(), h100(), b200(), l4(), vl52362())


def _linear(places: Sequence[float], measured: Sequence[float]) -> Callable[[float], float]:
    """Interpolate measured milliseconds linearly, never falling; the last slope continues."""
    milliseconds = list(accumulate(measured, max))

    def seconds(at: float) -> float:
        left = min(max(bisect_right(places, at) - 1, 0), len(places) - 2)
        rise = milliseconds[left + 1] - milliseconds[left]
        slope = rise / (places[left + 1] - places[left])
        return 1e-3 * (milliseconds[left] + slope * (at - places[left]))

    return seconds
