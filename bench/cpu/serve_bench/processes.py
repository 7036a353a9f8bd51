"""`python -m bench.cpu.serve_bench.processes`: the engine in its own process against a thread.

Both servers run at the same time and answer the same prompts in turns. Ratios are of each turn, the
process's figure through the thread's; the last line is JSON with their medians.
"""

import json
import os
import random
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from bench.cpu.peers.epsilon_pair import SIZE_82M, STRONG, Size, write_pair
from bench.cpu.peers.loads import FIRST_TOKEN
from bench.cpu.serve_bench.clients import Served, ask_for_all
from checks.harness.machine import processor_model
from checks.harness.servers import Server, own_recipe, serving

SIZES = {"82M": SIZE_82M, "1M": Size(4, 128)}
"""The small one's steps take less time than their HTTP."""
STREAMS = (8, 64)
REPEATS = 5
PROMPT_TOKENS = 16
ANSWER_TOKENS = 32
DTYPE = "float32"


def main() -> int:
    """Measure, print."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for name, size in SIZES.items():
        with tempfile.TemporaryDirectory() as folder:
            target, _ = write_pair(Path(folder), size, STRONG)
            recipes = (own_recipe(target, DTYPE, max(STREAMS), how) for how in ("off", "on"))
            with serving(next(recipes)) as thread, serving(next(recipes)) as process:
                _compare(name, size, thread, process, ratios)
    summary: dict[str, object] = {
        key: {"median": round(statistics.median(each), 3), "min": round(min(each), 3),
              "max": round(max(each), 3)}
        for key, each in ratios.items()
    }  # fmt: skip
    facts = {"processor": processor_model(), "cores": os.cpu_count(), "threads": 1}
    print(json.dumps(summary | facts))
    return 0


def _compare(
    name: str, size: Size, thread: Server, process: Server, ratios: dict[str, list[float]]
) -> None:
    for repeat in range(REPEATS):
        for streams in STREAMS:
            rng = random.Random(repeat)
            prompts = [
                [rng.randrange(FIRST_TOKEN, size.vocab) for _ in range(PROMPT_TOKENS)]
                for _ in range(streams)
            ]
            order = (thread, process) if repeat % 2 else (process, thread)
            served = {
                server: ask_for_all(server, prompts, ANSWER_TOKENS, streams) for server in order
            }
            for what, ratio in _ratios(served[process], served[thread]).items():
                ratios[f"{name} {what} {streams}"].append(ratio)
                print(f"{name} {what} {streams}: {ratio:.3f}", file=sys.stderr, flush=True)
    ratios[f"{name} memory"].append(process.memory_bytes() / thread.memory_bytes())
    megabytes = [server.memory_bytes() >> 20 for server in (thread, process)]
    print(f"{name} memory: {megabytes} MiB", file=sys.stderr)


def _ratios(process: Served, thread: Served) -> dict[str, float]:
    """Tokens per second of processor time, and per second."""
    return {
        "per CPU second": process.tokens / process.cpu_s / (thread.tokens / thread.cpu_s),
        "per second": process.tokens / process.wall_s / (thread.tokens / thread.wall_s),
    }


if __name__ == "__main__":
    sys.exit(main())
