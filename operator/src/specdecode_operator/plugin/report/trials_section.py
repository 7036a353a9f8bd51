"""The trials of a resource: what was tried, the interval over time, the result. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from specdecode_operator.judge.evidence import Stratum
from specdecode_operator.plugin.report import plots
from specdecode_operator.plugin.report.gathered import Gathered
from specdecode_operator.plugin.report.history import bucket_name
from specdecode_operator.plugin.report.page import PageFigure, PageSection, PageTable
from specdecode_operator.plugin.report.plots import PlotLine
from specdecode_operator.plugin.report.trial_course import TrialCourse, course
from specdecode_operator.plugin.wording import age

LEAST_AXIS_PERCENT = 2.0
"""The axis of a gain contains at least this much on both sides of 0."""

_ARM_COLUMNS = (
    ("requests", "Requests"),
    ("tokens", "Tokens"),
    ("acceptLength", "Accept length"),
    ("secondsPerToken", "Seconds per token"),
    ("failed", "Failed"),
    ("configHash", "Config hash"),
)


def trials_section(given: Gathered) -> PageSection:
    """All trials, the newest first, and what they cost."""
    problem = given.problems.get("trials")
    ordered = sorted(
        given.trials, key=lambda each: str(each["metadata"]["creationTimestamp"]), reverse=True
    )
    missing = [problem] if problem else []
    if not ordered and not problem:
        missing.append(
            "No trial is stored. `kubectl specdecode trial start NAME -p PATCH` creates one; mode "
            "Auto and editPolicy Guarded (spec.rollout) create them automatically."
        )
    return PageSection(
        "trials",
        "Trials",
        facts=_exploration(given.status.get("exploration") or {}),
        parts=tuple(_trial(index, each) for index, each in enumerate(ordered)),
        missing=tuple(missing),
    )


def _exploration(cost: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    facts = (
        ("Trials of the operator in 24 hours", cost.get("trialsToday")),
        ("Share of a day's pod-seconds on candidates", cost.get("candidateShare")),
        ("No trial before", cost.get("notBefore")),
    )
    return tuple((name, str(value)) for name, value in facts if value is not None)


def _trial(index: int, trial: Mapping[str, Any]) -> PageSection:
    spec, status = trial["spec"], trial.get("status") or {}
    found = course(status)
    figures = [_interval(index, found)] if found.points else []
    figures += [each for each in (_arms(status), _strata(found)) if each is not None]
    return PageSection(
        f"trial-{index}",
        f"Trial {trial['metadata']['name']}",
        text=(*filter(None, (str(status.get("message") or ""),)), "Candidate, as a merge patch:"),
        facts=_facts(spec, status, str(trial["metadata"]["creationTimestamp"])),
        figures=tuple(figures),
        code=_patch(spec.get("candidate") or {}),
        missing=(found.problem,) if found.problem else (),
    )


def _patch(candidate: Mapping[str, Any]) -> str:
    text: str = yaml.safe_dump(
        dict(candidate), sort_keys=False, allow_unicode=True, default_flow_style=None
    )
    return text


def _facts(
    spec: Mapping[str, Any], status: Mapping[str, Any], created: str
) -> tuple[tuple[str, str], ...]:
    verdict, reason = str(status.get("verdict") or ""), str(status.get("reason") or "")
    result = f"{verdict} ({reason})" if verdict and reason else verdict
    measured = status.get("measuredSeconds")
    facts = (
        ("Result", result),
        ("Phase", str(status.get("phase") or "Pending")),
        ("Created by", str(spec.get("origin") or "User")),
        ("Strategy", str(status.get("strategy") or spec.get("strategy") or "Auto")),
        ("Started", str(status.get("startedAt") or f"not yet; created {created}")),
        ("Ended", str(status.get("endedAt") or "")),
        ("Measured", age(float(measured)) if measured is not None else ""),
    )
    return tuple((name, value) for name, value in facts if value)


def _interval(index: int, found: TrialCourse) -> PageFigure:
    """The gain with its bounds, which hold at every moment."""
    title = f"Gain by {found.unit}, with the interval that it lies in"
    points, last = found.points, found.points[-1]
    gain, low, high = (
        [100.0 * getattr(each, name) for each in points] for name in ("gain", "low", "high")
    )
    described = (
        f"After {last.count} {found.unit} the gain is {_percent(last.gain)}, between "
        f"{_percent(last.low)} and {_percent(last.high)}. "
        "Dashed: the bounds; the dark level is 0; what is beyond the axis is drawn at its edge."
    )
    drawn = [
        PlotLine(gain),
        PlotLine(low, "line bound", has_dots=False),
        PlotLine(high, "line bound", has_dots=False),
    ]
    plot = plots.lines(
        (f"interval-{index}", title, described),
        drawn,
        [str(each.count) for each in points],
        bounds=_axis(low, high),
        unit=" %",
        x_title=found.unit,
        area=(low, high),
        rule=0.0,
    )
    rows = tuple(
        (str(each.count), _percent(each.gain), _percent(each.low), _percent(each.high))
        for each in points
    )
    columns = (found.unit.capitalize(), "Gain", "Low", "High")
    return PageFigure(PageTable(title, columns, rows), plot)


def _arms(status: Mapping[str, Any]) -> PageFigure | None:
    arms = [(name, status.get(name)) for name in ("baseline", "candidate")]
    known = [(name, arm) for name, arm in arms if isinstance(arm, Mapping)]
    if not known:
        return None
    rows = tuple((title, *(_cell(arm.get(key)) for _, arm in known)) for key, title in _ARM_COLUMNS)
    columns = ("", *(name.capitalize() for name, _ in known))
    return PageFigure(PageTable("Measured of each configuration", columns, rows))


def _strata(found: TrialCourse) -> PageFigure | None:
    if not found.strata:
        return None
    rows = tuple(
        (
            _stratum(each.stratum),
            f"{each.baseline_requests:,.0f}",
            f"{each.candidate_requests:,.0f}",
            f"{each.share:.0%}",
            _percent(each.gain) if each.gain is not None else "–",
        )
        for each in found.strata
    )
    columns = ("Requests", "Baseline", "Candidate", "Share", "Gain")
    return PageFigure(PageTable("By kind of request", columns, rows))


def _stratum(stratum: Stratum) -> str:
    size = f"batch {bucket_name(stratum.batch_size)}" if stratum.batch_size else ""
    words = (size, stratum.sampling, stratum.grammar, stratum.prompt, stratum.label)
    return ", ".join(filter(None, words))


def _axis(low: Sequence[float], high: Sequence[float]) -> tuple[float, float]:
    """Bounds of the axis, in percent: the first intervals are too wide to be shown as a whole."""
    later = len(low) // 3
    shown = [*low[later:], *high[later:], LEAST_AXIS_PERCENT, -LEAST_AXIS_PERCENT]
    return plots.span([max(-100.0, min(100.0, each)) for each in shown])


def _percent(value: float) -> str:
    return "below −1000 %" if value < -10.0 else f"{value:+.1%}"


def _cell(value: object) -> str:
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
