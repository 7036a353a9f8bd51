"""`python -m bench.operator [--quick]`: a table of O1 to O8 and, last, one line of JSON."""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.operator import measures
from bench.operator.api import Api, connect
from bench.operator.decisions import decision_delay
from bench.operator.long_trial import DURATION_S, long_trial
from bench.operator.process import OperatorProcess
from bench.operator.report import missed, table
from bench.operator.seen import watching
from bench.operator.whole import ENGINES, recommending_operator
from bench.operator.world import (
    NAMESPACE,
    WORKLOADS,
    control_plane,
    operator_kubeconfig,
    start_kubelet,
)
from localnode.controlplane import ApiServer
from localnode.progress import step

RESOURCES = 500
MANY, MANY_QUICK = 5000, 1000
NEVER_S = 86400.0
COLLECTOR = ("garbage-collector-controller",)
TRIALS, TRIALS_QUICK = 24, 8
LONG_QUICK_S = 900.0
"""Of the long trial, simulated."""


def main() -> int:
    """Measure everything."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="bench.operator")
    parser.add_argument("--quick", action="store_true", help="fewer repeats, shorter windows")
    parser.add_argument("--resources", type=int, default=RESOURCES, help="at rest and at restart")
    parser.add_argument("--many", type=int, help="to survive; 0 leaves it out")
    parser.add_argument("--only", choices=("bursts", "decisions", "whole"), help="O2, O4 or O7")
    parser.add_argument("--engines", type=int, default=ENGINES, help="in mode Recommend")
    options = parser.parse_args()
    many = options.many if options.many is not None else MANY_QUICK if options.quick else MANY
    with tempfile.TemporaryDirectory(prefix="operator-bench-") as name:
        folder = Path(name)
        trials = TRIALS_QUICK if options.quick else TRIALS
        figures: measures.Figures = {}
        if options.only in (None, "decisions"):
            figures |= asyncio.run(_with_trials(folder, trials))
        if options.only in (None, "whole"):
            window_s = 60.0 if options.quick else 180.0
            figures |= asyncio.run(_recommending(folder, options.engines, window_s))
        if options.only is None:
            with step("a trial of two hours on eight pods, in simulated time"):
                seconds = LONG_QUICK_S if options.quick else DURATION_S
                figures |= asyncio.run(long_trial(seconds))
            figures |= asyncio.run(_with_kubelet(folder, 5 if options.quick else 30))
        if options.only in (None, "bursts"):
            figures |= asyncio.run(_bursts(folder, options.quick))
        if options.only is None:
            figures |= asyncio.run(_alone(folder, options.quick, options.resources, many))
    print(table(figures))
    result = {
        **figures,
        "resources": options.resources,
        "many_resources": many,
        "engines": options.engines,
        "load_average": os.getloadavg()[0],
        "missed": missed(figures),
    }
    print(json.dumps(result))
    return 0


@asynccontextmanager
async def _plane(
    folder: Path, controllers: tuple[str, ...] = COLLECTOR, resync_s: float = 300.0
) -> AsyncIterator[tuple[ApiServer, Api, OperatorProcess]]:
    """Start a control plane; the operator is to be started, and is killed at the end."""
    with control_plane(folder, controllers) as server:
        kubeconfig = operator_kubeconfig(server, folder)
        operator = OperatorProcess.describe(kubeconfig, folder / "operator.log", resync_s)
        async with connect(server) as api:
            try:
                yield server, api, operator
            finally:
                operator.kill()


async def _with_trials(folder: Path, trials: int) -> measures.Figures:
    """What needs engines that report requests."""
    async with _plane(folder / "trials") as (_, api, operator):
        await operator.start()
        with step(f"{trials} trials of a draft that does not fit"):
            return await decision_delay(api, trials)


async def _recommending(folder: Path, engines: int, window_s: float) -> measures.Figures:
    """What engines in mode Recommend cost a whole operator."""
    plane_folder = folder / "recommending"
    async with _plane(plane_folder) as (_, api, operator):
        operator.callbacks = plane_folder / "callbacks.jsonl"
        await operator.start()
        with step(f"{engines} engines in mode Recommend"):
            return await recommending_operator(api, operator, engines, window_s)


async def _with_kubelet(folder: Path, count: int) -> measures.Figures:
    """What needs pods that get ready."""
    async with (
        _plane(folder / "workloads", WORKLOADS) as (server, api, operator),
        watching(api, NAMESPACE) as seen,
    ):
        with step("start a simulated kubelet and the operator"):
            await start_kubelet(server, api)
            await operator.start()
        with step(f"{count} resources until they are ready"):
            return await measures.readiness(api, seen, count)


async def _bursts(folder: Path, is_quick: bool) -> measures.Figures:
    """What the operator and a plain client write to the API server, in turns."""
    turns, count = (3, 60) if is_quick else (7, 100)
    async with (
        _plane(folder / "bursts", resync_s=NEVER_S) as (_, api, operator),
        watching(api, NAMESPACE) as seen,
    ):
        await measures.api_limit(api, 30)  # the first ones are slower
        with step(f"{turns} bursts of {count} resources"):
            return await measures.bursts(api, seen, operator, turns, count)


async def _alone(folder: Path, is_quick: bool, resources: int, many: int) -> measures.Figures:
    """What is between the operator and the API server alone."""
    async with _plane(folder / "alone", resync_s=NEVER_S) as (_, api, operator):
        await operator.start()
        async with watching(api, NAMESPACE) as seen:
            with step("resources one by one"):
                figures = await measures.creation(api, seen, 30 if is_quick else 100)
            with step(f"up to {resources} resources"):
                await measures.fill(api, seen, operator, resources)
        with step("at rest"):
            figures |= await measures.steady(api, operator, 6.0 if is_quick else 60.0)
        operator.resync_s = 8.0 if is_quick else 60.0
        with step("restart"):
            figures |= await measures.restart(api, operator, resources)
        with step("at rest, with a resync"):
            idle = figures["steady_idle_cpu_share"]
            assert idle is not None
            figures |= await measures.resyncs(api, operator, idle)
        if many > resources:
            operator.kill()
            operator.resync_s = NEVER_S
            await operator.start()
            async with watching(api, NAMESPACE) as seen:
                with step(f"{many} resources"):
                    window_s = 6.0 if is_quick else 60.0
                    figures |= await measures.survival(api, seen, operator, many, window_s)
    return figures


if __name__ == "__main__":
    sys.exit(main())
