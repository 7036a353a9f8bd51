"""`python -m bench.cpu.dialled [--quick]`: rates, draft time by verified tokens; last line JSON."""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from bench.cpu.dialled.dial import MOST_STEPS, Dial, undialled
from bench.cpu.dialled.engines import (
    BATCH_SIZES,
    DFLASH,
    EAGLE3,
    NONE,
    Tokens,
    answer,
    build,
    ratios,
)
from bench.cpu.dialled.heads import write_heads
from bench.cpu.dialled.trained import compare_trained
from bench.cpu.peers.epsilon_pair import SIZE_82M, STRONG, Size, write_pair
from checks.harness.machine import processor_model
from specdecode_engine.batch.draft import Draft
from specdecode_engine.batch.request_table import DecodeBatch
from specdecode_engine.batch.shapes import DraftShape
from specdecode_engine.engine import EngineCore
from specdecode_engine.sampling.sampler import SamplingBatch

PROMPT, ANSWER = 33, 96
LEARNING_STEPS = 120
FALLING = tuple(max(0.8 - 0.1 * step, 0.1) for step in range(MOST_STEPS))
ACCEPTANCES: Mapping[str, tuple[float, ...]] = {
    "0.8, 0.7, 0.6, …": FALLING,
    "0.8 everywhere": (0.8,) * MOST_STEPS,
}
VERIFIED = (1, 2, 3, 5, 7, 11, 15)  # tokens of a block
QUICK = Size(8, 256, heads=4)
QUICK_BATCH_SIZES = (1,)


def main() -> int:
    """Measure all of it, and print the figures."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="dialled", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="A small model and few repeats.")
    parser.add_argument("--repeats", type=int, default=5, help="Of every cell.")
    parser.add_argument("--batch-sizes", type=int, nargs="*", help="Of rates; at most 8.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    size, repeats = (QUICK, 2) if options.quick else (SIZE_82M, options.repeats)
    batch_sizes = options.batch_sizes or (QUICK_BATCH_SIZES if options.quick else BATCH_SIZES)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        target, _ = write_pair(folder, size, STRONG)
        heads = {NONE: None, **write_heads(folder, size)}
        cores = {algorithm: build(target, algorithm, head) for algorithm, head in heads.items()}
        drafting = build(target, DFLASH, heads[DFLASH], max(VERIFIED))
    figures = {
        "processor": processor_model(),
        "rates": _rates(cores, size, batch_sizes, repeats),
        "draft_ms": dict(_draft_times(drafting, cores[NONE], size, 30 * repeats)),
        "trained": compare_trained(repeats),
    }
    print(json.dumps(figures, ensure_ascii=False))
    return 0


def _draft_times(
    core: EngineCore, plain: EngineCore, size: Size, repeats: int
) -> Iterator[tuple[str, object]]:
    """Yield the median time of a draft by how much of it is verified, for each batch size."""
    shapes = [DraftShape.chain(steps) for steps in VERIFIED]
    drafter = core.context.drafter
    assert drafter is not None
    draft = drafter.draft  # the head's own
    times: dict[int, list[float]] = {}

    def timed(batch: DecodeBatch, sampling: SamplingBatch, shape: DraftShape) -> Draft:
        made = dialled(batch, sampling, shape)  # a forward also projects what was committed
        for other in random.sample(shapes, len(shapes)):
            started_s = time.process_time()
            draft(batch, sampling, other)
            times.setdefault(other.num_steps, []).append(time.process_time() - started_s)
        return made

    for batch_size in (1, max(BATCH_SIZES)):
        # A draft of which nothing is accepted is found unfit, and left out.
        texts = _texts(plain, size, batch_size, seed=0)
        Dial(texts, PROMPT, (1.0,) * MOST_STEPS, size.vocab).install(core)
        dialled = drafter.draft
        times.clear()
        vars(drafter)["draft"] = timed
        while len(times.get(1, ())) < repeats:
            answer(core, _prompts(size, batch_size, seed=0), ANSWER)
        undialled(drafter)
        medians = {steps: statistics.median(found) * 1e3 for steps, found in times.items()}
        growth = medians[max(medians)] / medians[min(medians)] - 1
        rounded = {steps: round(medians[steps], 3) for steps in sorted(medians)}
        yield f"batch {batch_size}", {"by_verified": rounded, "growth": round(growth, 4)}


def _rates(
    cores: Mapping[str, EngineCore], size: Size, batch_sizes: Sequence[int], repeats: int
) -> dict[str, object]:
    """Return tokens per second of processor time, by acceptance and batch size."""
    found: dict[str, object] = {}
    for batch_size in batch_sizes:
        texts = torch.cat(
            [_texts(cores[NONE], size, batch_size, seed) for seed in range(repeats + 1)]
        )
        for label, acceptance in ACCEPTANCES.items():
            dial = Dial(texts, PROMPT, acceptance, size.vocab)
            for algorithm in (EAGLE3, DFLASH):
                dial.install(cores[algorithm])
                _learn(cores[algorithm], _prompts(size, batch_size, seed=repeats))
            found[f"{label}, batch {batch_size}"] = _cell(cores, size, batch_size, repeats)
    return found


def _cell(
    cores: Mapping[str, EngineCore], size: Size, batch_size: int, repeats: int
) -> dict[str, object]:
    rates: dict[str, list[float]] = {algorithm: [] for algorithm in cores}
    started_at = {name: core.counters.decode.request_steps for name, core in cores.items()}
    for repeat in tqdm(range(repeats), desc=f"batch {batch_size}"):
        prompts = _prompts(size, batch_size, repeat)
        answers = []
        for algorithm, core in cores.items():
            started_s = time.process_time()
            answers.append(answer(core, prompts, ANSWER))
            tokens = batch_size * ANSWER
            rates[algorithm].append(tokens / (time.process_time() - started_s))
        assert all(one == answers[0] for one in answers), "a draft changed the text"
    tokens = repeats * batch_size * (ANSWER - 1)  # a prompt's forward gives the first one
    return {
        "dflash_to_eagle3": ratios(rates[DFLASH], rates[EAGLE3]),
        "dflash_to_plain": ratios(rates[DFLASH], rates[NONE]),
        "eagle3_to_plain": ratios(rates[EAGLE3], rates[NONE]),
        "tokens_per_cpu_second": {
            algorithm: round(statistics.median(one), 1) for algorithm, one in rates.items()
        },
        "tokens_per_step": {
            name: round(tokens / (core.counters.decode.request_steps - started_at[name]), 2)
            for name, core in cores.items()
        },
    }


def _learn(core: EngineCore, prompts: Sequence[Tokens]) -> None:
    """Let the policy learn what this acceptance and batch size are worth."""
    goal = core.counters.decode.steps + LEARNING_STEPS
    while core.counters.decode.steps < goal:
        answer(core, prompts, ANSWER)


def _prompts(size: Size, batch_size: int, seed: int) -> list[Tokens]:
    """Draw prompts; those of all seeds differ in their first token."""
    rng, width = random.Random(seed), max(BATCH_SIZES)
    return [
        (8 + seed * width + number, *(rng.randrange(size.vocab) for _ in range(PROMPT - 1)))
        for number in range(batch_size)
    ]


def _texts(core: EngineCore, size: Size, batch_size: int, seed: int) -> Tensor:
    prompts = _prompts(size, batch_size, seed)
    pairs = zip(prompts, answer(core, prompts, ANSWER), strict=True)
    return torch.tensor([(*prompt, *answered) for prompt, answered in pairs])


if __name__ == "__main__":
    sys.exit(main())
