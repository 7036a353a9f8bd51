"""Accept length and tokens per processor second by algorithm, on the example models."""

import statistics
import time
from dataclasses import dataclass

from tqdm import tqdm
from transformers import AutoTokenizer

from bench.cpu.engine.cells import EXAMPLES, PLAIN, Cell, all_cells
from checks.lossless.prompts import load_prompts
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.engine import EngineCore
from specdecode_engine.startup.build import build_core

PROMPTS = 32
REPEATS = 5


@dataclass(slots=True)
class Runs:
    """What a cell has shown so far."""

    core: EngineCore
    tokens_per_cpu_second: list[float]


def measure_algorithms() -> dict[str, dict[str, float]]:
    """Measure every cell, all of them within each repeat."""
    prompts = load_prompts(EXAMPLES, AutoTokenizer.from_pretrained(EXAMPLES / "target"))[:PROMPTS]
    cells = all_cells()
    runs = {cell: Runs(build_core(cell.boot()), []) for cell in tqdm(cells, desc="loading")}
    for _ in tqdm(range(REPEATS), desc="algorithms"):
        for cell, run in runs.items():
            run.tokens_per_cpu_second.append(_measure(run.core, cell.batch_size, prompts))
    return {cell.name: _result(cell, runs) for cell in cells}


def _measure(core: EngineCore, batch_size: int, prompts: tuple[tuple[int, ...], ...]) -> float:
    """Answer all prompts, `batch_size` at a time; tokens per second of processor time."""
    tokens, started = 0, time.process_time()
    for first in range(0, len(prompts), batch_size):
        for number, prompt in enumerate(prompts[first : first + batch_size]):
            params = SamplingParams(seed=0, max_tokens=64, temperature=0.0, ignore_eos=True)
            core.submit(Request(str(number), prompt, params))
        while core.has_work():
            tokens += sum(len(output.token_ids) for output in core.step())
    return tokens / (time.process_time() - started)


def _result(cell: Cell, runs: dict[Cell, Runs]) -> dict[str, float]:
    run = runs[cell]
    plain = runs[Cell(PLAIN, 0, 0, cell.batch_size)]
    ratios = zip(run.tokens_per_cpu_second, plain.tokens_per_cpu_second, strict=True)
    return {
        "accept_length": round(run.core.counters.decode.accept_length, 3),
        "tokens_per_cpu_second": round(statistics.median(run.tokens_per_cpu_second), 1),
        "to_plain": round(statistics.median(own / other for own, other in ratios), 3),
    }
