"""The configuration in force and the reason for it. Pure."""

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any

import yaml

from specdecode_operator.plugin import in_force
from specdecode_operator.plugin.diagnosis import speculation_text
from specdecode_operator.plugin.errors import PluginError
from specdecode_operator.plugin.in_force import InForceSpec
from specdecode_operator.plugin.report.gathered import Gathered
from specdecode_operator.plugin.report.page import PageFigure, PageSection, PageTable
from specdecode_operator.trial.record.candidate import DEFAULT_PAGE_SIZE

REASONS = {
    "FollowsSpec": "It is the configuration of the spec.",
    "Promoted": "A trial put it in force in place of the spec.",
    "Guarded": "The spec was edited, and the edit has not passed its trial.",
}


def configuration_section(given: Gathered) -> PageSection:
    """What runs, why, and how it differs from the spec."""
    effective = given.status.get("effective") or {}
    reason = str(effective.get("reason") or "FollowsSpec")
    missing = [given.problems["revisions"]] if "revisions" in given.problems else []
    try:
        running = in_force.in_force(given.resource, in_force.read_revisions(given.revisions))
    except PluginError as error:
        running = InForceSpec(given.spec, None)
        if not missing:
            missing.append(f"The configuration in force is not known: {error}.")
    text = [REASONS.get(reason, ""), _sentence(str(effective.get("message") or ""))]
    patch = in_force.adoption(given.resource, running, with_image=True)
    if patch:
        text.append("This merge patch writes it into the spec:")
    return PageSection(
        "configuration",
        "Configuration in force",
        text=tuple(filter(None, text)),
        facts=_facts(effective, reason, running),
        figures=_table(given.spec, running.spec, effective),
        code=yaml.safe_dump(patch, sort_keys=False, allow_unicode=True) if patch else "",
        missing=tuple(missing),
    )


def steps_text(steps: Iterable[Any]) -> str:
    """Candidate draft steps in one cell."""
    return ", ".join(map(str, steps))


def _facts(
    effective: Mapping[str, Any], reason: str, running: InForceSpec
) -> tuple[tuple[str, str], ...]:
    spec = running.spec
    speculation = spec.get("speculation") or {}
    engine = spec.get("engine") or {}
    revision = running.revision
    facts = (
        ("Reason", reason),
        ("Speculation", speculation_text(dict(spec))),
        ("Draft", str((speculation.get("draft") or {}).get("uri") or "")),
        ("Page size", str(spec.get("pageSize", DEFAULT_PAGE_SIZE))),
        ("Engine image", str(engine.get("image") or "that of the operator")),
        ("Revision", f"{revision.name} (number {revision.number})" if revision else ""),
        ("Config hash", str(effective.get("configHash") or "")),
        ("Table hash", str(effective.get("tableHash") or "")),
    )
    return tuple((name, value) for name, value in facts if value)


def _table(
    spec: Mapping[str, Any], running: Mapping[str, Any], effective: Mapping[str, Any]
) -> tuple[PageFigure, ...]:
    """The table in force next to that of the spec, where there is one."""
    wanted = _entries(spec)
    current = _by_start(effective.get("table") or ()) or _entries(running)
    if not wanted and not current:
        return ()
    rows = tuple(
        (f"{start}", steps_text(current.get(start) or ()), steps_text(wanted.get(start) or ()))
        for start in sorted(wanted.keys() | current.keys())
    )
    caption = "Candidate draft steps by batch size"
    return (PageFigure(PageTable(caption, ("Batch size from", "In force", "Spec"), rows)),)


def _entries(spec: Mapping[str, Any]) -> dict[int, list[Any]]:
    adaptive = (spec.get("speculation") or {}).get("adaptive") or {}
    return _by_start(adaptive.get("batchSizes") or ())


def _by_start(table: Iterable[Mapping[str, Any]]) -> dict[int, list[Any]]:
    ordered = sorted(table, key=itemgetter("from"))
    return {each["from"]: list(each.get("candidateSteps") or ()) for each in ordered}


def _sentence(text: str) -> str:
    """A message of the status as a sentence."""
    if not text:
        return ""
    return f"{text[0].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"
