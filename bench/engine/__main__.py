"""`python -m engine [--quick]`: a table of all cells and, last, one line of JSON."""

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import dataclass

from tqdm import tqdm
from transformers import AutoTokenizer

from engine.adaptive import FULL, QUICK, measure_adaptive
from engine.cells import EXAMPLES, PLAIN, Cell, all_cells
from engine.crossing import measure_crossing
from lossless.prompts import load_prompts
from specdecode_engine.build import build_core
from specdecode_engine.loop import EngineCore
from specdecode_engine.request import Request, SamplingParams


@dataclass(slots=True)
class Runs:
    """What a cell has shown so far."""

    core: EngineCore
    tokens_per_cpu_second: list[float]


def main() -> int:
    """Measure every cell."""
    parser = argparse.ArgumentParser(prog="engine")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    cells = all_cells(options.quick)
    prompts = load_prompts(EXAMPLES, AutoTokenizer.from_pretrained(EXAMPLES / "target"))
    prompts = prompts[:8] if options.quick else prompts[:32]
    runs = {cell: Runs(build_core(cell.boot()), []) for cell in tqdm(cells, desc="loading")}
    for _ in tqdm(range(2 if options.quick else 5), desc="repeats"):
        for cell, run in runs.items():
            run.tokens_per_cpu_second.append(_measure(run.core, cell.batch_size, prompts))
    results = {cell.name: _result(cell, runs) for cell in cells}
    _print_table(results)
    extent = QUICK if options.quick else FULL
    adaptive = measure_adaptive(extent)
    crossing = measure_crossing(extent)
    for name, cell in {**adaptive, "1 and 64 in turns": crossing}.items():
        print(f"{name:24} {json.dumps(cell)}")
    summary = {
        "load_average": os.getloadavg()[0],
        "cells": results,
        "adaptive": adaptive,
        "crossing": crossing,
    }
    print(json.dumps(summary))
    return 0


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
        "accept_length": round(run.core.snapshot().accept_length, 3),
        "tokens_per_cpu_second": round(statistics.median(run.tokens_per_cpu_second), 1),
        "to_plain": round(statistics.median(own / other for own, other in ratios), 3),
    }


def _print_table(results: dict[str, dict[str, float]]) -> None:
    print(f"{'cell':24} {'accept length':>14} {'tokens/CPU s':>13} {'to plain':>9}")
    for name, result in results.items():
        values = (result["accept_length"], result["tokens_per_cpu_second"], result["to_plain"])
        print(f"{name:24} {values[0]:14.2f} {values[1]:13.1f} {values[2]:9.2f}")


if __name__ == "__main__":
    sys.exit(main())
