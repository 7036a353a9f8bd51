"""Measures what is detected: `make bench-detection`. The last line is JSON."""

import argparse
import json
import tempfile
from pathlib import Path

from tqdm import tqdm

from detection.damage import FILE_DAMAGE, HEAD_DAMAGE
from detection.served import SOUND, draft_of, example_requests, run_all, served_with
from detection.simulation import Traffic, alarms
from specdecode_engine.engine import EngineCore

REQUESTS = 60
TRAFFICS = {
    "0.10": Traffic(0.10),
    "0.15": Traffic(0.15),
    "0.3": Traffic(0.3),
    "0.10, requests differ": Traffic(0.10, spread=5.0),
    "0.10, short requests": Traffic(0.10, length=2),
}


def measure(damage: str, requests: int) -> dict[str, object]:
    """Serve the example prompts with a damaged head, one request after the other in batches."""
    with (
        tempfile.TemporaryDirectory() as folder,
        served_with(damage, Path(folder) / "head", policy="static") as core,
    ):
        run_all(core, example_requests(requests))
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer requests, runs and proposals")
    parser.add_argument("--only", default="", help="heads whose name contains this")
    quick = (arguments := parser.parse_args()).quick
    names = [name for name in (SOUND, *FILE_DAMAGE, *HEAD_DAMAGE) if arguments.only in name]
    heads = {}
    for name in tqdm(names, desc="heads"):
        heads[name] = measure(name, REQUESTS // 2 if quick else REQUESTS)
        tqdm.write(f"{name}: {heads[name]}")
    runs, proposals = (100, 2000) if quick else (1000, 10_000)
    false_alarms = {}
    with tqdm(total=runs * len(TRAFFICS), desc="false alarms") as bar:
        for name, traffic in TRAFFICS.items():
            false_alarms[name] = alarms(traffic, runs, proposals, bar.update)
    result = {"heads": heads, "runs": runs, "proposals": proposals, "false_alarms": false_alarms}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
