"""From what was read to the parts of the page. Pure."""

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.plugin.diagnosis import device_text
from specdecode_operator.plugin.report.configuration_section import configuration_section
from specdecode_operator.plugin.report.gathered import Gathered
from specdecode_operator.plugin.report.page import PageFigure, PageSection, PageTable, ReportPage
from specdecode_operator.plugin.report.recommendation_section import recommendation_section
from specdecode_operator.plugin.report.trials_section import trials_section
from specdecode_operator.plugin.report.work_sections import (
    positions_section,
    steps_section,
    throughput_section,
)


def report_page(given: Gathered) -> ReportPage:
    """The page of a resource; each section states what is missing."""
    metadata = given.resource["metadata"]
    sections = (
        configuration_section(given),
        steps_section(given),
        positions_section(given),
        recommendation_section(given),
        throughput_section(given),
        trials_section(given),
        _conditions(given),
    )
    return ReportPage(
        title=f"{metadata['namespace']}/{metadata['name']}",
        summary=_summary(given),
        sections=sections,
        made_at=f"{given.now:%Y-%m-%d %H:%M} UTC",
    )


def _summary(given: Gathered) -> tuple[tuple[str, str], ...]:
    spec, status = given.spec, given.status
    ready = _condition(status, "Ready")
    measured = status.get("measured") or {}
    replicas = f"{status.get('readyReplicas', 0)} of {spec.get('replicas', 1)} ready"
    facts = (
        ("Model", str((spec.get("model") or {}).get("uri") or "")),
        ("Ready", f"{ready['status']} ({ready['reason']})" if ready else "not reconciled yet"),
        ("Replicas", f"{replicas}, on {device_text(spec)}"),
        ("Accept length", str(measured.get("acceptLength") or "")),
        ("Tokens per second", str(measured.get("tokensPerSecond") or "")),
        ("Endpoint", str((status.get("address") or {}).get("url") or "")),
    )
    return tuple((name, value) for name, value in facts if value)


def _conditions(given: Gathered) -> PageSection:
    rows = tuple(
        (
            str(each["type"]),
            str(each["status"]),
            str(each.get("reason") or ""),
            str(each.get("message") or ""),
            str(each.get("lastTransitionTime") or ""),
        )
        for each in given.status.get("conditions") or ()
    )
    columns = ("Type", "Status", "Reason", "Message", "Since")
    table = PageTable("Conditions of the resource", columns, rows, numbers=len(columns))
    missing = () if rows else ("No operator has reconciled the resource yet.",)
    figures = (PageFigure(table),) if rows else ()
    return PageSection("conditions", "Conditions", figures=figures, missing=missing)


def _condition(status: Manifest, kind: str) -> Manifest:
    """A condition of the status; empty where it is absent."""
    return next((each for each in status.get("conditions") or () if each["type"] == kind), {})


LONG_TABLE = 12
"""Rows from which on a table is folded on screens."""


def render_page(page: ReportPage) -> str:
    """The page, without scripts and without references to other files."""
    return _template().render(page=page, long_table=LONG_TABLE)


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("specdecode_operator.plugin.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html")
