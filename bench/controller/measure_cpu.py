"""`python -m controller.measure_cpu`: measure what steps of the 82 M model take on one core.

Prints the curve that `machines.cpu` reads: the target's time by rows, a draft step's by batch size,
and what a token of KV adds. Times are medians of whole steps of the engine.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import torch

from engine.epsilon_pair import SIZE_82M, STRONG, write_pair
from peers.report import processor_model
from specdecode_api.boot import EngineBoot
from specdecode_engine.engine import EngineCore
from specdecode_engine.startup.build import build_core
from specdecode_engine.startup.profiling import FixedSteps, decoding

SIZES = (1, 2, 4, 8, 16, 32, 64)
DEEPEST = 7
SHORT, LONG = 32, 768  # tokens of a request
KV_SIZE = 8  # batch size at which KV is varied
STEPS, WARM_UP = 9, 2


def main() -> None:
    """Measure and print."""
    argparse.ArgumentParser(prog="controller.measure_cpu", description=__doc__).parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        core = _build(Path(folder))
        print(json.dumps(_source() | _measure(core), indent=1))


def _measure(core: EngineCore) -> dict[str, object]:
    target_s: dict[int, float] = {}
    draft_s: list[float] = []
    for size in SIZES:
        times = _times(core, size, SHORT)
        drafting_s = times[DEEPEST, 0] - times[0, None]
        target_s[size] = times[0, None]
        draft_s.append(drafting_s / DEEPEST)
        if size == SIZES[-1]:
            for steps in (1, 3, DEEPEST):
                rest_s = times[steps, None] - drafting_s * steps / DEEPEST
                target_s[size * (steps + 1)] = rest_s
    long_s, short_s = (_times(core, KV_SIZE, length)[0, None] for length in (LONG, SHORT))
    row_s = (draft_s[-1] - draft_s[-2]) / (SIZES[-1] - SIZES[-2])
    return {
        "rows": list(target_s),
        "target_ms": [round(1e3 * seconds, 3) for seconds in target_s.values()],
        "draft_step_ms": {
            "batch_sizes": list(SIZES),
            "ms": [round(1e3 * seconds, 3) for seconds in draft_s],
        },
        "kv_token_ns": round(1e9 * (long_s - short_s) / (KV_SIZE * (LONG - SHORT)), 1),
        "draft_prompt_row_ms": round(1e3 * row_s, 4),
    }


def _times(core: EngineCore, size: int, context: int) -> dict[tuple[int, int | None], float]:
    """Median seconds of steps by draft steps and the positions verified of them; None: all."""
    fixed = core.scheduler.policy
    assert isinstance(fixed, FixedSteps)
    choices = [(0, None), (DEEPEST, 0), (1, None), (3, None), (DEEPEST, None)]
    times: dict[tuple[int, int | None], float] = {}
    with decoding(core, size, context):
        for steps, verified in choices:
            fixed.num_steps, fixed.verified = steps, verified
            fixed.observed.clear()
            for _ in range(STEPS):
                core.step()
            own = [one.seconds for one in fixed.observed if one.decision.num_steps == steps]
            times[steps, verified] = statistics.median(own[WARM_UP:])
    return times


def _build(folder: Path) -> EngineCore:
    target, draft = write_pair(folder, SIZE_82M, STRONG)
    boot = {
        "model": {"path": str(target), "dtype": "float32"},
        "speculation": {
            "algorithm": "STANDALONE",
            "draft_path": str(draft),
            "num_steps": 3,
            "policy": "goodput",
            "profile_seconds": 0,
        },
        "scheduling": {"max_running_requests": SIZES[-1]},
        "memory": {"prefix_cache": False},
        "device": "cpu",
        "threads": 1,
    }
    core = build_core(EngineBoot.model_validate(boot))
    core.scheduler.policy = FixedSteps(0)
    return core


def _source() -> dict[str, object]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    )
    return {
        "command": "python -m controller.measure_cpu",
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit.stdout.strip(),
        "processor": f"{processor_model()}, {os.cpu_count()} cores, one used",
    }


if __name__ == "__main__":
    main()
