"""`make rollout-suite`: every act under steady requests, a line each, and the outcome as JSON."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from checks.traffic.scene import Scene, prepared_cluster, staged
from checks.trials.acts import ACTS, Act
from demo.console import DemoFailed
from localnode.errors import NodeError
from localnode.progress import report


def main() -> int:
    """Play the acts; 1 when a verdict is wrong or a request failed."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="trials", description=__doc__)
    parser.add_argument("--acts", nargs="+", metavar="NAME", help="only these, in this order")
    options = parser.parse_args()
    known = {act.__name__: act for act in ACTS}
    if unknown := set(options.acts or ()) - set(known):
        parser.error(f"no act is called {', '.join(unknown)}; there are {', '.join(known)}")
    try:
        outcome = _run([known[name] for name in options.acts or known])
    except (DemoFailed, NodeError) as failure:
        report(f"trials: {failure}")
        print(json.dumps({"passed": False, "faults": [str(failure)]}))
        return 1
    print(json.dumps(outcome))
    return 0 if outcome["passed"] else 1


def play(scene: Scene, acts: Sequence[Act]) -> dict[str, object]:
    """Play acts; what each came to, the requests that failed, and whether all is well.

    The load compares every answer with plain decoding, so an answer that a trial changed fails.
    """
    found: dict[str, object] = {}
    faults: list[str] = []
    for act in acts:
        scene.load.begin()
        ended = act(scene)
        tally = scene.load.tally
        found[act.__name__] = {
            **asdict(ended),
            "load_requests": tally.sent,
            "failed": list(tally.failures),
        }
        if tally.wrong_text:
            faults.append(f"{act.__name__}: {tally.wrong_text} answers differ from plain decoding")
        faults += [f"{act.__name__}: {fault}" for fault in (*ended.faults, *tally.failures)]
        ending = f"{ended.verdict}, {ended.reason}, {ended.seconds:.0f} s"
        print(f"{act.__name__}: {ending}", flush=True)
    return {"passed": not faults, "faults": faults, **found}


def _run(acts: Sequence[Act]) -> dict[str, object]:
    with staged(prepared_cluster()) as scene:
        return play(scene, acts)


if __name__ == "__main__":
    sys.exit(main())
