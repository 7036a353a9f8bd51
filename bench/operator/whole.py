"""O7: a whole operator with engines in mode Recommend, on a real API server.

Resources of four engines each are read once a minute. The engines serve, from another process,
metrics as after a day of mixed traffic; their pods are made by the bench.
"""

import asyncio
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.operator import busy
from bench.operator.api import Api
from bench.operator.measures import Figures
from bench.operator.process import OperatorProcess
from bench.operator.recommending import serving
from bench.operator.world import NAMESPACE, resource
from specdecode_api import names
from specdecode_operator.objects.kinds import CONFIG_MAP, DEPLOYMENT, POD, RESOURCE, Manifest
from specdecode_operator.trial.strategies.looks import REST_LOOK_S

ENGINES, PER_RESOURCE = 300, 4
TIMEOUT_S = 240.0
SHOWN = 10
"""Longest callbacks that are printed."""


async def recommending_operator(
    api: Api, operator: OperatorProcess, engines: int, window_s: float
) -> Figures:
    """Share of a core, longest callback and writes of an operator that runs, with `callbacks`."""
    count = engines // PER_RESOURCE
    for number in range(count):
        await api.create(RESOURCE, _recommending(f"o7-{number}"))
    hashes = [await _start_pods(api, number) for number in range(count)]
    draft = await _draft_folder(api, f"o7-0-{hashes[0]}")
    with serving(count * PER_RESOURCE, names.MANAGEMENT_PORT, hashes, draft):
        await operator.settle()
        await asyncio.sleep(REST_LOOK_S)  # every resource once, with new connections
        before, cpu_s, began_s = await operator.metrics(), operator.cpu_s(), time.monotonic()
        await asyncio.sleep(window_s)
        after, took_s = await operator.metrics(), time.monotonic() - began_s
        share = (operator.cpu_s() - cpu_s) / took_s
        recommended = await _recommendations(api, count)
    assert operator.callbacks is not None, "callbacks are timed"
    operator.stop()
    long_ms = _long_callbacks(operator.callbacks, began_s, began_s + took_s)
    writes = _grown(before, after, "status_write_total")
    return {
        "whole_cpu_share": round(share, 4),
        "whole_callback_max_ms": round(max(long_ms, default=0.0), 2),
        "whole_callbacks_above_5_ms": float(sum(each > 5.0 for each in long_ms)),
        "whole_status_writes_per_min": round(60 * writes / took_s, 1),
        "whole_reconciles_per_min": round(
            60 * _grown(before, after, "reconcile_total") / took_s, 1
        ),
        "whole_api_errors": _grown(before, after, "api_error_total"),
        "whole_recommendations": float(recommended),
        "whole_peak_mib": round(operator.last_peak_mib, 1),
    }


def _recommending(name: str) -> Manifest:
    manifest = resource(name)
    rollout = {"mode": "Recommend"}
    return manifest | {"spec": manifest["spec"] | {"replicas": PER_RESOURCE, "rollout": rollout}}


async def _start_pods(api: Api, number: int) -> str:
    """Make the ready pods of a Deployment and report them in its status; returns their hash."""
    name = f"o7-{number}"
    async with asyncio.timeout(TIMEOUT_S):
        while (deployment := await api.find(DEPLOYMENT, NAMESPACE, name)) is None:
            await asyncio.sleep(0.05)
    template = deployment["spec"]["template"]
    for place in range(PER_RESOURCE):
        address = busy.address(number * PER_RESOURCE + place)
        metadata = {"name": f"{name}-{place}", "namespace": NAMESPACE}
        head = {"apiVersion": "v1", "kind": POD.kind}
        pod = head | {"metadata": template["metadata"] | metadata, "spec": template["spec"]}
        await api.create(POD, pod)
        await api.apply(head | {"metadata": metadata, "status": _ready(address)}, "/status")
    counts = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
    status = {"observedGeneration": deployment["metadata"]["generation"]}
    status |= dict.fromkeys(counts, PER_RESOURCE)
    head = {"apiVersion": DEPLOYMENT.api_version, "kind": DEPLOYMENT.kind}
    metadata = {"name": name, "namespace": NAMESPACE}
    await api.apply(head | {"metadata": metadata, "status": status}, "/status")
    return str(template["metadata"]["annotations"][names.ANNOTATION_CONFIG_HASH])


async def _draft_folder(api: Api, boot_file: str) -> str:
    """Folder of the draft with which engines start."""
    found = await api.find(CONFIG_MAP, NAMESPACE, boot_file)
    assert found is not None, "it is written before the Deployment"
    boot = json.loads(found["data"][names.BOOT_FILE_NAME])
    return str(boot["speculation"]["draft_path"])


def _ready(address: str) -> dict[str, Any]:
    conditions = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready")]
    reached = {"podIP": address, "podIPs": [{"ip": address}]}
    return {"phase": "Running", "conditions": conditions, **reached}


async def _recommendations(api: Api, count: int) -> int:
    """Resources whose status has a recommendation."""
    found = [await api.find(RESOURCE, NAMESPACE, f"o7-{number}") for number in range(count)]
    return sum("recommendation" in ((each or {}).get("status") or {}) for each in found)


def _long_callbacks(file: Path, from_s: float, to_s: float) -> list[float]:
    """Processor time of the callbacks that were noted between two moments, in milliseconds."""
    noted = [json.loads(line) for line in file.read_text().splitlines()]
    within = [(cpu_ms, about) for at_s, cpu_ms, about in noted if from_s <= at_s <= to_s]
    for cpu_ms, about in sorted(within, reverse=True)[:SHOWN]:
        print(f"{cpu_ms:.1f} ms in {about}", file=sys.stderr)
    return [cpu_ms for cpu_ms, _ in within]


def _grown(before: Mapping[str, float], after: Mapping[str, float], name: str) -> float:
    return after.get(name, 0.0) - before.get(name, 0.0)
