"""`kubectl specdecode top`: current metrics of engines, read through the API server."""

import asyncio
import time
from dataclasses import dataclass, field

from rich.console import RenderableType
from rich.text import Text

from specdecode_api import names
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.plugin import engine_sample, lookup
from specdecode_operator.plugin.diagnosis import pod_state, speculation_text
from specdecode_operator.plugin.engine_sample import EngineSample
from specdecode_operator.plugin.errors import PluginError
from specdecode_operator.plugin.lookup import Scope
from specdecode_operator.plugin.reach import Reader
from specdecode_operator.plugin.top_view import Engine, Fleet, draw_top

NOT_STARTED = frozenset({"Pending", "Unschedulable", "ContainerCreating", "Succeeded", "Failed"})


@dataclass(slots=True)
class Memory:
    """The latest sample of each pod by uid; owned by the command."""

    samples: dict[str, EngineSample] = field(default_factory=dict)


async def top(reader: Reader, scope: Scope, memory: Memory) -> RenderableType:
    """The current output: rates since the samples in memory."""
    found = await lookup.resources(reader, scope)
    if not found:
        return Text(f"no {names.KIND}")
    return draw_top(await asyncio.gather(*(_fleet(reader, each, memory) for each in found)))


async def _fleet(reader: Reader, resource: Manifest, memory: Memory) -> Fleet:
    pods = await lookup.pods(reader, resource)
    engines = await asyncio.gather(*(_engine(reader, pod, memory) for pod in pods))
    metadata, spec = resource["metadata"], resource.get("spec") or {}
    name, namespace = metadata["name"], metadata["namespace"]
    return Fleet(namespace, name, speculation_text(spec), tuple(engines))


async def _engine(reader: Reader, pod: Manifest, memory: Memory) -> Engine:
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    before = memory.samples.pop(uid, None)
    if (state := pod_state(pod)) in NOT_STARTED:
        return Engine(name, problem=state)
    try:
        text = await lookup.engine_metrics(reader, pod)
        now = memory.samples[uid] = engine_sample.read(text, time.monotonic())
    except (PluginError, ValueError) as error:
        return Engine(name, problem=f"{state}; {error}")
    return Engine(name, now, before)
