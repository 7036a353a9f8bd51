"""Measures what is detected: `make bench-detection`. The last line is JSON."""

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from tqdm import tqdm

from checks.detection.cost import measure as measure_cost
from checks.detection.damage import FILE_DAMAGE, HEAD_DAMAGE
from checks.detection.lives import KINDS
from checks.detection.lives import measure as measure_lives
from checks.detection.served import (
    SOUND,
    draft_of,
    example_requests,
    random_requests,
    run_all,
    served_with,
)
from checks.detection.simulation import Traffic, alarms
from specdecode_engine.batch.request import Request
from specdecode_engine.engine import EngineCore

REQUESTS = 60
TEXTS: Mapping[str, Callable[[int], list[Request]]] = {
    "examples": example_requests,
    "random prompts": random_requests,
}
PARTS = ("heads", "false-alarms", "lives", "cost")
TRAFFICS = {
    "0.10": Traffic(0.10),
    "0.15": Traffic(0.15),
    "0.3": Traffic(0.3),
    "0.10, requests differ": Traffic(0.10, spread=5.0),
    "0.10, short requests": Traffic(0.10, length=2),
}


def measure(damage: str, requests: list[Request]) -> dict[str, object]:
    """Serve requests with a damaged head, one after the other in batches."""
    with (
        tempfile.TemporaryDirectory() as folder,
        served_with(damage, Path(folder) / "head", policy="static") as core,
    ):
        run_all(core, requests)
        return {**_draft_of(core), "accept_length": round(core.counters.decode.accept_length, 3)}


def _draft_of(core: EngineCore) -> dict[str, object]:
    draft = draft_of(core)
    seen = draft.evidence
    return {
        "fitness": draft.fitness.value,
        "acceptance": round(seen.acceptance, 4),
        "proposed": seen.proposed,
        "requests": seen.requests,
    }


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer requests, runs and proposals")
    parser.add_argument("--only", default="", help="heads whose name contains this")
    parser.add_argument("--part", choices=PARTS, help="one of the measurements alone")
    parser.add_argument("--lives", type=int, default=1000, help="lives of an engine, by kind")
    arguments = parser.parse_args()
    parts = (arguments.part,) if arguments.part else PARTS
    result: dict[str, object] = {}
    for part in parts:
        match part:
            case "heads":
                result |= _measure_heads(arguments.only, arguments.quick)
            case "false-alarms":
                result |= _count_false_alarms(arguments.quick)
            case "lives":
                result["lives"] = _measure_lives(10 if arguments.quick else arguments.lives)
            case "cost":
                result["cost"] = measure_cost(3 if arguments.quick else 20)
    print(json.dumps(result))


def _measure_heads(only: str, is_quick: bool) -> dict[str, object]:
    names = [name for name in (SOUND, *FILE_DAMAGE, *HEAD_DAMAGE) if only in name]
    count = REQUESTS // 2 if is_quick else REQUESTS
    heads: dict[str, dict[str, object]] = {text: {} for text in TEXTS}
    for text, make in TEXTS.items():
        for name in tqdm(names, desc=f"heads, {text}"):
            heads[text][name] = measure(name, make(count))
            tqdm.write(f"{text}, {name}: {heads[text][name]}")
    return {"heads": heads}


def _measure_lives(lives: int) -> dict[str, dict[str, float]]:
    with tqdm(total=lives * KINDS, desc="lives") as bar:
        return measure_lives(lives, bar.update)


def _count_false_alarms(is_quick: bool) -> dict[str, object]:
    runs, proposals = (100, 2000) if is_quick else (1000, 10_000)
    found = {}
    with tqdm(total=runs * len(TRAFFICS), desc="false alarms") as bar:
        for name, traffic in TRAFFICS.items():
            found[name] = alarms(traffic, runs, proposals, bar.update)
    return {"runs": runs, "proposals": proposals, "false_alarms": found}


if __name__ == "__main__":
    main()
