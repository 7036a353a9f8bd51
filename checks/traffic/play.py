"""Plays events one after the other, each until the resource has come to rest again."""

import time
from collections.abc import Callable

import httpx

from checks.traffic import changes, control, losses
from checks.traffic.routers import increase
from checks.traffic.scene import Scene
from checks.traffic.verdict import Outcome
from demo.console import DemoFailed
from localnode.errors import NodeError

Event = Callable[[Scene], None]

EVENTS: tuple[Event, ...] = (
    changes.steady,
    changes.image_change,
    changes.restart_change,
    changes.parser_change,
    changes.hot_change,
    changes.scale_up_and_down,
    changes.scale_up,
    losses.engine_kill,
    losses.engine_kills,
    losses.router_api,
    losses.router_kill,
    losses.last_engine_kill,
    losses.pod_deletion,
    losses.node_drain,
    control.operator_kill,
    control.operator_replacement,
    control.leader_kill,
    control.api_server_restart,
    changes.operator_upgrade,
)
QUICK: tuple[Event, ...] = (
    losses.engine_kills,
    losses.router_kill,
    changes.scale_up_and_down,
    losses.last_engine_kill,  # has all replicas again
    losses.node_drain,
    changes.restart_change,
    changes.parser_change,
)
"""Tests in tests/e2e play the others that are short."""
ANSWERS_AFTER = 20


def play(scene: Scene, event: Event) -> Outcome:
    """Play one event; what keeps it from its end is a failure of the event."""
    counts = scene.router_counts()
    scene.load.begin()
    scene.witness.begin()
    tally, findings = scene.load.tally, scene.witness.findings
    started = time.monotonic()
    try:
        event(scene)
        scene.settle()
    except (DemoFailed, NodeError, httpx.HTTPError) as failure:
        tally.fail(f"{type(failure).__name__}: {failure}")
    seconds = time.monotonic() - started
    scene.load.wait_answers(ANSWERS_AFTER, 60)
    routers = increase(counts, scene.router_counts())
    return Outcome(event.__name__, seconds, tally, findings, routers)
