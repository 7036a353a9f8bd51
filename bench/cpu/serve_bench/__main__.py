"""`python -m bench.cpu.serve_bench [--quick]`: curves of all servers; last, one line of JSON."""

import argparse
import datetime
import json
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.cpu.peers.epsilon_pair import SIZE_82M, STRONG, write_pair
from bench.cpu.peers.loads import FIRST_TOKEN
from bench.cpu.peers.plots import draw_curves
from bench.cpu.peers.report import RESULTS
from bench.cpu.peers.worker import PeerFailed, start_worker
from bench.cpu.serve_bench.clients import AnswerIncomplete, ask_for_all
from bench.cpu.serve_bench.load import Lengths, LoadFailed, Point, run_load
from checks.harness.installation import LOCKS, PeerUnavailable, ensure_environment, site_packages
from checks.harness.machine import processor_model
from checks.harness.servers import (
    Recipe,
    Server,
    ServerFailed,
    own_recipe,
    serving,
    transformers_recipe,
)

DTYPE = "float32"
MOST_RUNNING = 8
HTTP_TARGETS = {8: 0.95, 64: 0.93}
"""By streams: tokens per CPU second by HTTP to those of the engine in process."""
_WAYS = {8: "few", 64: "plain"}
"""Of the worker in process, by the requests that it runs at a time."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured."""

    lengths: Lengths
    concurrencies: tuple[int, ...]
    requests_each: int  # times the requests at a time
    repeats: int  # of the comparison with the engine in process


QUICK = Extent(Lengths(32, 32), (1, 8), 2, 5)
FULL = Extent(Lengths(64, 64), (1, 2, 4, 8, 16), 4, 5)


@dataclass(slots=True)
class Results:
    """What was measured, and why the rest was not."""

    curves: dict[str, list[Point]] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)
    http_of_in_process: dict[int, float] = field(default_factory=dict)  # by streams
    http_of_in_process_wall: dict[int, float] = field(default_factory=dict)


def main() -> int:
    """Measure, print, write the results of a full run."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="serve_bench")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--results", type=Path, help="folder for JSON, Markdown and plot")
    options = parser.parse_args()
    extent = QUICK if options.quick else FULL
    results = Results(unavailable={"openvino model server": "it is not on PyPI"})
    try:
        aiperf = ensure_environment(LOCKS / "load.txt").with_name("aiperf")
        extra = site_packages(ensure_environment(LOCKS / "serve.txt"))
    except PeerUnavailable as reason:
        print(f"serve_bench: no load generator: {reason}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        target, draft = write_pair(Path(folder), SIZE_82M, STRONG)
        recipes = own_recipe(target, DTYPE, MOST_RUNNING), transformers_recipe(target, DTYPE, extra)
        for recipe in recipes:
            _measure(recipe, aiperf, target, draft, extent, results)
    print(_table(results))
    summary = _summary(results)
    folder_out = options.results or (None if options.quick else RESULTS)
    if folder_out is not None:
        _write(results, summary, folder_out)
    print(json.dumps(summary))
    return 0 if "own" in results.curves else 1


def _measure(
    recipe: Recipe, aiperf: Path, target: Path, draft: Path, extent: Extent, results: Results
) -> None:
    try:
        with serving(recipe) as server:
            results.curves[server.name] = list(_curve(server, aiperf, target, extent))
        if recipe.name == "own":
            with serving(own_recipe(target, DTYPE, max(HTTP_TARGETS))) as server:
                _compare_in_process(server, target, draft, extent, results)
    except (ServerFailed, LoadFailed, PeerFailed, AnswerIncomplete) as failure:
        results.unavailable[recipe.name] = str(failure)


def _curve(server: Server, aiperf: Path, tokenizer: Path, extent: Extent) -> Iterator[Point]:
    for concurrency in extent.concurrencies:
        requests = concurrency * extent.requests_each
        print(f"{server.name}: {concurrency} at a time", file=sys.stderr, flush=True)
        yield run_load(aiperf, server, tokenizer, extent.lengths, concurrency, requests)


def _compare_in_process(
    server: Server, target: Path, draft: Path, extent: Extent, results: Results
) -> None:
    """Answer the same prompts by HTTP and in process, in turns; ratios of each turn, the median."""
    setup = {"target": str(target), "draft": str(draft), "dtype": DTYPE}
    with start_worker("own_worker", setup) as worker:
        for streams in HTTP_TARGETS:
            cpu, wall = [], []
            for repeat in range(extent.repeats):
                print(f"in process: {streams} at a time", file=sys.stderr, flush=True)
                count, tokens = streams * extent.requests_each, extent.lengths.answer
                prompts = _prompts(count, extent.lengths.prompt, repeat)
                served = ask_for_all(server, prompts, tokens, streams)
                answer = worker.ask(_WAYS[streams], prompts, [tokens] * count)
                cpu.append(served.tokens / served.cpu_s / answer.rate)
                wall.append(served.tokens / served.wall_s / (answer.token_count / answer.wall_s))
            results.http_of_in_process[streams] = round(statistics.median(cpu), 3)
            results.http_of_in_process_wall[streams] = round(statistics.median(wall), 3)


def _prompts(count: int, length: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [
        [rng.randrange(FIRST_TOKEN, SIZE_82M.vocab) for _ in range(length)] for _ in range(count)
    ]


def _summary(results: Results) -> dict[str, object]:
    by_cpu, by_wall = results.http_of_in_process, results.http_of_in_process_wall
    return {
        **{f"http_b{streams}_of_in_process": by_cpu.get(streams) for streams in HTTP_TARGETS},
        **{f"http_b{streams}_of_in_process_wall": by_wall.get(streams) for streams in HTTP_TARGETS},
        "http_targets_met": {
            str(streams): ratio >= HTTP_TARGETS[streams] for streams, ratio in by_cpu.items()
        },
        "throughput_vs_transformers_serve": _vs(results, "transformers serve"),
        "curves": {name: [asdict(p) for p in points] for name, points in results.curves.items()},
        "unavailable": results.unavailable,
        "dtype": DTYPE,
        "processor": processor_model(),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 1),
    }


def _vs(results: Results, other: str) -> dict[str, float]:
    """Ratios of tokens per second of the servers' processor time, by requests at a time."""
    theirs = {point.concurrency: point for point in results.curves.get(other, [])}
    return {
        str(point.concurrency): round(
            point.server_tokens_per_cpu_s / theirs[point.concurrency].server_tokens_per_cpu_s, 3
        )
        for point in results.curves.get("own", [])
        if point.concurrency in theirs
    }


def _table(results: Results) -> str:
    head = ("at a time", "tokens/s", "p50 ms", "p99 ms", "first ms", "between ms", "tokens/CPU s")
    lines = [f"{'server':20}" + "".join(f"{one:>14}" for one in head)]
    for name, points in results.curves.items():
        for p in points:
            values = (p.concurrency, p.tokens_per_s, p.latency_p50_ms, p.latency_p99_ms)
            more = (p.first_token_p50_ms, p.between_tokens_p50_ms, p.server_tokens_per_cpu_s)
            lines.append(f"{name:20}" + "".join(f"{value:14}" for value in (*values, *more)))
    for streams, ratio in results.http_of_in_process.items():
        target = HTTP_TARGETS[streams]
        lines.append(
            f"by HTTP to in process, {streams} at a time: {ratio} of the tokens per processor "
            f"second (target ≥ {target}: {'met' if ratio >= target else 'missed'}), "
            f"{results.http_of_in_process_wall[streams]} by the clock"
        )
    lines += [f"not measured: {name}: {why}" for name, why in results.unavailable.items()]
    return "\n".join(lines)


def _write(results: Results, summary: dict[str, object], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    base = folder / f"serve-cpu-{datetime.date.today().isoformat()}"
    base.with_suffix(".json").write_text(json.dumps(summary, indent=1) + "\n")
    page = f"# Servers on a CPU, under aiperf's load\n\n```\n{_table(results)}\n```\n"
    base.with_suffix(".md").write_text(page)
    curves = {
        name: [(float(p.concurrency), p.tokens_per_s, p.latency_p50_ms) for p in points]
        for name, points in results.curves.items()
    }
    draw_curves(curves, base.with_suffix(".png"))


if __name__ == "__main__":
    sys.exit(main())
