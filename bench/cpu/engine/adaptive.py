"""Adaptive depth and every fixed one, on real requests: weak and strong draft, batch 1 and 8.

All engines of a pair answer the same requests, one after the other within each repeat, on one
thread and by processor time. Ratios are taken within a repeat, then their median.
"""

import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.cpu.engine.interleaved import Learner, interleave
from bench.cpu.peers.epsilon_pair import STRONG, WEAK, Size, write_pair
from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.engine import EngineCore
from specdecode_engine.startup.build import build_core

FIXED_STEPS = (0, 1, 2, 3, 5, 7)
ADAPTIVE = "goodput"
BATCH_SIZES = (1, 8)
PROMPT_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured."""

    size: Size
    answer_tokens: int
    repeats: int
    learning_steps: int
    fixed_steps: tuple[int, ...] = FIXED_STEPS


QUICK = Extent(
    Size(4, 256, heads=4),
    answer_tokens=24,
    repeats=2,
    learning_steps=100,
    fixed_steps=(0, 3, 7),
)
FULL = Extent(Size(12, 768, heads=12), answer_tokens=128, repeats=5, learning_steps=300)


def measure_adaptive(extent: Extent) -> dict[str, dict[str, float]]:
    """Return per cell: rates, and the adaptive one over the best fixed and over none."""
    results = {}
    for name, epsilon in (("weak", WEAK), ("strong", STRONG)):
        with tempfile.TemporaryDirectory() as folder:
            target, draft = write_pair(Path(folder), extent.size, epsilon)
            configs: tuple[int | str, ...] = (*extent.fixed_steps, ADAPTIVE)
            cores = {config: build_adaptable(target, draft, config) for config in configs}
        for batch_size in BATCH_SIZES:
            label = f"{name} draft b{batch_size}"
            results[label] = _measure_cell(cores, batch_size, extent, label)
    return results


def build_adaptable(
    target: Path, draft: Path, config: int | str, max_running: int = max(BATCH_SIZES)
) -> EngineCore:
    """Build an engine with a fixed depth or the adaptive policy; depth 0 has no draft at all."""
    speculation: dict[str, object] = {"algorithm": "STANDALONE", "draft_path": str(draft)}
    if config == ADAPTIVE:
        speculation |= {"policy": ADAPTIVE, "num_steps": 3}
    else:
        speculation |= {"num_steps": config}
    document = {
        "model": {"path": str(target)},
        "speculation": speculation if config else {},
        "scheduling": {"max_running_requests": max_running},
        "memory": {"prefix_cache": False},
        "device": "cpu",
        "threads": 1,
    }
    return build_core(EngineBoot.model_validate(document))


def _measure_cell(
    cores: dict[int | str, EngineCore], batch_size: int, extent: Extent, label: str
) -> dict[str, float]:
    def run(core: EngineCore, seed: int) -> float:
        return _rate(core, batch_size, extent, seed)

    learner = Learner(ADAPTIVE, extent.learning_steps)
    rates = interleave(cores, run, extent.repeats, learner, label)
    best = rates.best(extent.fixed_steps)
    return {
        "best_fixed_steps": best,
        "to_best_fixed": rates.ratio(ADAPTIVE, best),
        "to_no_speculation": rates.ratio(ADAPTIVE, 0),
        **rates.medians(),
    }


def _rate(core: EngineCore, batch_size: int, extent: Extent, repeat: int) -> float:
    """Answer `batch_size` requests at once; decoded tokens per second of processor time."""
    rng = random.Random(repeat)
    vocab = extent.size.vocab
    for number in range(batch_size):
        prompt = tuple(rng.randrange(vocab) for _ in range(PROMPT_TOKENS))
        params = SamplingParams(0, extent.answer_tokens, 0.0, ignore_eos=True)
        core.submit(Request(str(number), prompt, params))
    tokens, started_s = 0, time.process_time()
    while core.has_work():
        tokens += sum(len(output.token_ids) for output in core.step())
    return tokens / (time.process_time() - started_s)
