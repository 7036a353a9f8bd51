"""`make traffic`: every event under steady traffic through routers, and the counts as JSON."""

import argparse
import json
import sys
from collections.abc import Sequence

from checks.traffic.changes import forget_second_tags
from checks.traffic.load import LONG_CLIENTS, MIXED_CLIENTS
from checks.traffic.play import EVENTS, QUICK, Event, play
from checks.traffic.scene import Scene, prepared_cluster, staged
from checks.traffic.verdict import HEAD, Outcome, line, summary
from demo.console import DemoFailed
from localnode.errors import NodeError
from localnode.paths import Paths
from localnode.progress import report

ENGINES, ROUTERS = 3, 2


def main() -> int:
    """Play the events; 1 when a request, a child or the status is not as it must be."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="traffic", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer events")
    parser.add_argument("--events", nargs="+", metavar="NAME", help="only these, in this order")
    options = parser.parse_args()
    known = {event.__name__: event for event in EVENTS}
    if unknown := set(options.events or ()) - set(known):
        parser.error(f"no event is called {', '.join(unknown)}; there are {', '.join(known)}")
    chosen = [known[name] for name in options.events or ()]
    try:
        outcomes = _run(chosen or (QUICK if options.quick else EVENTS))
    except (DemoFailed, NodeError) as failure:
        report(f"traffic: {failure}")
        print(json.dumps({"passed": False, "faults": {"stage": [str(failure)]}}))
        return 1
    result = summary(outcomes)
    print(json.dumps(result))
    return 0 if result["passed"] else 1


def _run(events: Sequence[Event]) -> list[Outcome]:
    cluster = prepared_cluster()
    try:
        with staged(cluster, MIXED_CLIENTS + LONG_CLIENTS, ENGINES, ROUTERS) as scene:
            return _play_all(scene, events)
    finally:
        forget_second_tags(Paths.from_environment())


def _play_all(scene: Scene, events: Sequence[Event]) -> list[Outcome]:
    outcomes = []
    print(HEAD, flush=True)
    for event in events:
        outcomes.append(play(scene, event))
        print(line(outcomes[-1]), flush=True)
        for fault in outcomes[-1].faults():
            print(f"  {fault}", flush=True)
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
