"""`make bench-router`: costs of the router and hit ratio of its choices; the last line is JSON."""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from bench.router.affinity import (
    CacheCounts,
    ConversationSizes,
    cache_flags,
    measure_affinity,
    write_long_model,
)
from bench.router.costs import STREAMS, Costs, CostSizes, measure_costs
from bench.router.programs import TOKEN, EngineProgram, RouterProgram
from checks.harness.machine import processor_model

AT_MOST: Mapping[str, float] = {
    "cpu_ms_per_event": 0.15,
    "cpu_ms_per_event_single": 0.25,
    "first_byte_ms_added_p50": 2.0,
    "first_byte_ms_added_p99": 10.0,
}
AT_LEAST: Mapping[str, float] = {"hit_ratio": 0.9}


def main() -> int:
    """Measure; 1 if a figure misses its limit."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="bench.router", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the conversations (1)")
    parser.add_argument("--only", choices=("costs", "hits"), help="only this part")
    options = parser.parse_args()
    figures: dict[str, float] = {}
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        token_file = Path(folder) / "token"
        token_file.write_text(TOKEN)
        if options.only != "hits":
            figures |= asdict(_measure_costs(token_file))
        if options.only != "costs":
            figures |= hit_figures(_measure_hits(token_file, Path(folder), options.seed))
    wrong = missed(figures)
    machine = {
        "processor": processor_model(), "cores": os.cpu_count(), "load_before": round(load, 1),
        "load_after": round(os.getloadavg()[0], 1),
    }  # fmt: skip
    rounded = {name: round(value, 4) for name, value in figures.items()}
    print(json.dumps({**rounded, "missed": wrong, **machine}))
    return 1 if wrong else 0


def missed(figures: Mapping[str, float]) -> list[str]:
    """Name the figures that miss their limits."""
    found = [name for name, most in AT_MOST.items() if figures.get(name, most) > most]
    return found + [name for name, least in AT_LEAST.items() if figures.get(name, least) < least]


def hit_figures(counts: Mapping[str, CacheCounts]) -> dict[str, float]:
    """Return the share of cached tokens in relation to that of one engine."""
    one = counts["one"].share
    return {
        "hit_ratio": counts["router"].share / one,
        "hit_ratio_service": counts["service"].share / one,
        "hit_share_of_one_engine": one,
        "prompt_tokens": counts["one"].prompt_tokens,
    }


def _measure_costs(token_file: Path) -> Costs:
    with ExitStack() as stack:
        engine = EngineProgram(token_file, "--max-running-requests", str(STREAMS))
        stack.callback(engine.close)
        engine.wait_ready()
        router = RouterProgram(token_file, [engine])
        stack.callback(router.close)
        return asyncio.run(measure_costs(router.wait_ready(1), engine, CostSizes()))


def _measure_hits(token_file: Path, folder: Path, seed: int) -> dict[str, CacheCounts]:
    model = write_long_model(folder / "model")

    def start(tokens: int) -> EngineProgram:
        return EngineProgram(token_file, *cache_flags(tokens), model=model)

    def route(engines: list[EngineProgram]) -> RouterProgram:
        return RouterProgram(token_file, engines)

    return measure_affinity(start, route, ConversationSizes(), seed)


if __name__ == "__main__":
    sys.exit(main())
