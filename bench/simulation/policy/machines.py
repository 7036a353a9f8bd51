"""Five machines that serve requests which differ: what a step takes by rows; each with its source.

Only the CPU's curve was measured for this project. No figure here was measured on a GPU.
"""

import math
from dataclasses import dataclass, replace

from bench.simulation.policy.profiles import Profile, cpu_82m, h100_dense_8b


@dataclass(frozen=True, slots=True)
class Gpu:
    """Data sheet of a GPU: bytes and multiplications in bfloat16 per second, dense."""

    bytes_per_s: float
    flops: float


H100 = Gpu(3.35e12, 989e12)
B200 = Gpu(8.0e12, 2250e12)
L4 = Gpu(0.3e12, 121e12)


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
    """Every machine, in the order of the report.

    KV of 256 long contexts does not fit the 24 GB of an L4: that is a cost curve only.
    """
    named = replace(cpu_82m(), name="cpu"), replace(h100_dense_8b(), name="h100")
    return (*named, derive("b200", B200), derive("l4", L4), vl52362())
