"""Draws diagnoses: one in full, or many as a table."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from specdecode_api import names
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.plugin import lookup
from specdecode_operator.plugin.diagnosis import ConditionLine, Diagnosis, PodLine, diagnose
from specdecode_operator.plugin.errors import PluginError
from specdecode_operator.plugin.lookup import Scope
from specdecode_operator.plugin.progress import (
    ProgressLine,
    model_progress,
    pod_progress,
    trial_progress,
)
from specdecode_operator.plugin.progress_view import draw_progress
from specdecode_operator.plugin.reach import Reader
from specdecode_operator.plugin.wording import age

MAX_PODS = 20
"""Whose progress is read."""

GOOD, BAD, FAINT = "green", "red", "dim"


def draw_diagnosis(
    diagnosis: Diagnosis, progress: Sequence[ProgressLine] = (), *, with_bars: bool = False
) -> RenderableType:
    """One resource in full."""
    parts: list[RenderableType] = [_title(diagnosis)]
    if diagnosis.why:
        parts.append(Text(diagnosis.why))
    parts += [Text(""), _facts(diagnosis)]
    if diagnosis.conditions:
        parts += _section("Conditions", _conditions(diagnosis.conditions))
    parts += _section("Pods", _pods(diagnosis.pods) if diagnosis.pods else Text("none", FAINT))
    if progress:
        parts += _section("Progress", draw_progress(progress, with_bars=with_bars))
    parts += _section("Events", _events(diagnosis) if diagnosis.events else Text("none", FAINT))
    return Group(*parts)


def draw_list(diagnoses: Sequence[Diagnosis], *, with_namespace: bool) -> RenderableType:
    """A line per resource."""
    first = ["NAMESPACE"] if with_namespace else []
    table = _table(*first, "NAME", "STATE", "REPLICAS", "SPECULATION", "AGE", "WHY")
    for diagnosis in diagnoses:
        facts = dict(diagnosis.facts)
        table.add_row(
            *([diagnosis.namespace] if with_namespace else []),
            diagnosis.name,
            Text(diagnosis.headline, GOOD if diagnosis.is_ready else BAD),
            facts.get("Replicas", "").partition(" ready")[0],
            facts.get("Speculation", ""),
            age(diagnosis.age_s),
            "" if diagnosis.is_ready else Text(diagnosis.why),
        )
    return table


def _title(diagnosis: Diagnosis) -> Text:
    title = Text(f"{diagnosis.namespace}/{diagnosis.name}", "bold")
    title.append("  ")
    title.append(diagnosis.headline, GOOD if diagnosis.is_ready else BAD)
    return title.append(f"  {age(diagnosis.age_s)} old", FAINT)


def _facts(diagnosis: Diagnosis) -> Table:
    table = Table.grid(padding=(0, 2))
    for label, text in diagnosis.facts:
        table.add_row(Text(label, FAINT), Text(text))
    return table


def _conditions(lines: Sequence[ConditionLine]) -> Table:
    table = _table("TYPE", "STATUS", "REASON", "SINCE", "MESSAGE")
    for line in lines:
        style = "" if line.is_good is None else GOOD if line.is_good else BAD
        status = Text(line.status, style)
        table.add_row(line.kind, status, line.reason, age(line.age_s), Text(line.message))
    return table


def _pods(lines: Sequence[PodLine]) -> Table:
    table = _table("NAME", "STATE", "RESTARTS", "CONFIG", "NODE", "AGE", "WHY")
    for line in lines:
        state = Text(line.state, GOOD if line.is_ready else BAD)
        config = Text(line.config if line.is_current else f"{line.config} (old)")
        row = (line.node or "–", age(line.age_s), Text(line.why))
        table.add_row(line.name, state, str(line.restarts), config, *row)
    return table


def _events(diagnosis: Diagnosis) -> Table:
    table = _table("AGE", "REASON", "ABOUT", "MESSAGE")
    for line in diagnosis.events:
        reason = Text(line.reason, BAD if line.is_warning else "")
        times = f" (×{line.count})" if line.count > 1 else ""
        table.add_row(age(line.age_s), reason, line.about, Text(line.message + times))
    return table


def _section(title: str, body: RenderableType) -> list[RenderableType]:
    return [Text(""), Text(title, "bold"), Padding(body, (0, 0, 0, 2))]


def _table(*columns: str) -> Table:
    """A table in the style of kubectl; only the last column is wrapped."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=FAINT)
    for column in columns[:-1]:
        table.add_column(column, no_wrap=True)
    table.add_column(columns[-1], overflow="fold")
    return table


async def status(reader: Reader, scope: Scope, *, with_bars: bool = False) -> RenderableType:
    """The current output; progress of one resource is drawn as bars or as text."""
    found = await lookup.resources(reader, scope)
    now = datetime.now(UTC)
    if scope.name is not None and len(found) == 1:
        pods = await lookup.pods(reader, found[0])
        events, progress = await asyncio.gather(
            lookup.events(reader, found[0], pods), _progress(reader, found[0], pods)
        )
        diagnosis = diagnose(found[0], pods, events, now)
        return draw_diagnosis(diagnosis, progress, with_bars=with_bars)
    diagnoses: list[Diagnosis] = [diagnose(resource, (), (), now) for resource in found]
    if not diagnoses:
        where = (
            "" if scope.is_everywhere else f" in namespace {scope.namespace or reader.namespace}"
        )
        return Text(f"no {names.KIND}{where}")
    return draw_list(diagnoses, with_namespace=scope.is_everywhere)


async def _progress(
    reader: Reader, resource: Manifest, found: Sequence[Manifest]
) -> list[ProgressLine]:
    """What pods and the running trial do, as far as it may be read."""
    asked = [each for each in found if (each.get("status") or {}).get("podIP")][:MAX_PODS]
    lines = list[ProgressLine]()
    try:
        reports = await asyncio.gather(*(lookup.progress(reader, each) for each in asked))
        for pod, report in zip(asked, reports, strict=True):
            if report is not None:
                lines += pod_progress(pod["metadata"]["name"], report)
    except PluginError as error:
        lines += [*model_progress(resource), ProgressLine("pods", str(error), None, "")]
    try:
        if (trial := await lookup.trial(reader, resource)) is not None:
            lines.append(trial_progress(trial, resource))
    except PluginError as error:
        lines.append(ProgressLine("trial", str(error), None, ""))
    return lines
