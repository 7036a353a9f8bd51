"""`kubectl specdecode report NAME`: reads what the page shows."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from specdecode_operator.fleet import exposition
from specdecode_operator.fleet.exposition import Samples
from specdecode_operator.objects.kinds import TRIAL, Manifest
from specdecode_operator.plugin import lookup
from specdecode_operator.plugin.errors import PluginError
from specdecode_operator.plugin.lookup import Scope
from specdecode_operator.plugin.reach import Reader
from specdecode_operator.plugin.report.gathered import Gathered
from specdecode_operator.plugin.report.history import (
    READ,
    EngineTotals,
    WorkHistory,
    engine_totals,
    from_activity,
)
from specdecode_operator.plugin.report.promql import periods
from specdecode_operator.plugin.report.view import render_page, report_page

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """Where the history is read from; without a URL from the resource."""

    prometheus: str | None = None
    since_s: int = 86_400
    """Length of the history that is read from Prometheus."""


async def report(reader: Reader, scope: Scope, options: ReportOptions) -> str:
    """The page as HTML.

    Raises:
        PluginError: the resource or Prometheus cannot be read.
    """
    (resource,) = await lookup.resources(reader, scope)
    return render_page(report_page(await gather(reader, resource, options, datetime.now(UTC))))


async def gather(
    reader: Reader, resource: Manifest, options: ReportOptions, now: datetime
) -> Gathered:
    """Read what belongs to a resource; what may not be read is recorded as a problem.

    Raises:
        PluginError: Prometheus cannot be read.
    """
    problems: dict[str, str] = {}
    history, totals = await _history(reader, resource, options, now, problems)
    nothing: list[Manifest] = []
    name, namespace = resource["metadata"]["name"], resource["metadata"]["namespace"]
    trials, revisions = await asyncio.gather(
        _or("trials", reader.items(TRIAL, namespace), nothing, problems),
        _or("revisions", lookup.revisions(reader, resource), nothing, problems),
    )
    return Gathered(
        resource,
        now,
        tuple(each for each in trials if each["spec"]["deployment"] == name),
        tuple(revisions),
        history,
        totals,
        options.prometheus is not None,
        problems,
    )


async def _history(
    reader: Reader,
    resource: Manifest,
    options: ReportOptions,
    now: datetime,
    problems: dict[str, str],
) -> tuple[WorkHistory | None, EngineTotals | None]:
    if options.prometheus is None:
        totals = await _live(reader, resource, problems)
        return from_activity(resource.get("status") or {}), totals
    from specdecode_operator.plugin.report.prometheus import read_history

    metadata = resource["metadata"]
    wanted = periods(now.timestamp(), options.since_s)
    return await read_history(options.prometheus, metadata["namespace"], metadata["name"], wanted)


async def _live(
    reader: Reader, resource: Manifest, problems: dict[str, str]
) -> EngineTotals | None:
    """Counters of running engines since their start."""
    nothing: list[Manifest] = []
    found = await _or("engines", lookup.pods(reader, resource), nothing, problems)
    answers = await asyncio.gather(
        *(_or("engines", _samples(reader, pod), None, problems) for pod in found)
    )
    engines = [each for each in answers if each is not None]
    if not engines:
        return None
    count = f"{len(engines)} of {len(found)} engines"
    return engine_totals(f"counters of {count} since their start", engines)


async def _samples(reader: Reader, pod: Manifest) -> Samples:
    try:
        return exposition.read_lines(await lookup.engine_metrics(reader, pod), READ)
    except exposition.BadScrape as error:
        raise PluginError(f"{pod['metadata']['name']}: {error}") from None


async def _or(what: str, reading: Awaitable[_T], otherwise: _T, problems: dict[str, str]) -> _T:
    """What was read; otherwise the error is recorded."""
    try:
        return await reading
    except PluginError as error:
        problems[what] = f"The {what} cannot be read: {error}."
        return otherwise
