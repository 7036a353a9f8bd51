"""What the engines did: draft steps, throughput, acceptance. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from specdecode_operator.fleet.reading import PositionTotals
from specdecode_operator.plugin.report import plots
from specdecode_operator.plugin.report.gathered import Gathered
from specdecode_operator.plugin.report.history import (
    Positions,
    Values,
    WorkHistory,
    bucket_name,
    mean,
    mean_steps,
)
from specdecode_operator.plugin.report.page import PageFigure, PageSection, PageTable
from specdecode_operator.plugin.report.plots import PlotBar, PlotLine, PlotStrip
from specdecode_operator.plugin.wording import number, share

HOW_TO_RECORD = (
    "The operator records it in modes Recommend and Auto (spec.rollout.mode); with "
    "--prometheus URL it is read from Prometheus instead."
)
NO_SERIES = (
    "Prometheus has no series of this resource in that time. The chart's PodMonitor "
    "(enginePodMonitor.enabled) sets the labels namespace and deployment that the queries use; "
    "check both, or choose a longer --since."
)


def steps_section(given: Gathered) -> PageSection:
    """Draft steps by batch bucket: the mean, and over time."""
    history = given.history
    means: Mapping[int, float] = history.mean_draft_steps if history else {}
    source = f"Source: {history.source}." if history else ""
    if not means and given.totals is not None:
        means = mean_steps(given.totals.steps)
        source = f"Source: {given.totals.source}."
    figures = [_mean_figure(means)] if means else []
    if history is not None and history.draft_steps:
        figures.append(_steps_over_time(history))
    return PageSection(
        "steps",
        "Draft steps by batch size",
        text=(source,) if means else (),
        figures=tuple(figures),
        missing=() if means else (_missing(given, "Nothing is recorded of draft steps."),),
    )


def throughput_section(given: Gathered) -> PageSection:
    """Tokens per second and accept length over time."""
    title, history = "Throughput and accept length over time", given.history
    if history is None or not history.ends:
        what = "No history of throughput is recorded."
        return PageSection("throughput", title, missing=(_missing(given, what),))
    labels = times(history.ends)
    figures = (
        _over_time("tokens", "Output tokens per second", labels, history.tokens_per_s, 0, 0.0),
        _over_time("accept", "Accept length", labels, history.accept_length, 2, 1.0),
    )
    return PageSection("throughput", title, (f"Source: {history.source}.",), figures=figures)


def positions_section(given: Gathered) -> PageSection:
    """Acceptance by draft position, and the accept length that it gives."""
    title, totals = "Accept length by draft position", given.totals
    if totals is None or not totals.positions:
        what = "No engine has counted accepted draft positions."
        problem = given.problems.get("engines")
        missing = [_missing(given, what) if given.has_prometheus else f"{what} {_LIVE}"]
        return PageSection(
            "positions", title, missing=tuple([*missing, problem] if problem else missing)
        )
    text = (
        "A position is reached if all positions before it were accepted. The accept length up to a "
        "position is 1 + the sum of the probabilities that the positions up to it are accepted; "
        "the 1 is the target's own token.",
        f"Source: {totals.source}.",
    )
    figures = (_accept_by_position(totals.positions), _rates_by_bucket(totals.positions))
    return PageSection("positions", title, text, figures=figures)


_LIVE = (
    "It is read from running engines (through the API server, which needs permission to get "
    "pods/proxy) or, with --prometheus URL, from Prometheus."
)


def times(ends: Sequence[datetime]) -> tuple[str, ...]:
    """Labels of moments in UTC: the time of day, or the day where they span more than two."""
    is_long = bool(ends) and ends[-1] - ends[0] > timedelta(hours=48)
    return tuple(f"{each:%d %b %H:%M}" if is_long else f"{each:%H:%M}" for each in ends)


def _missing(given: Gathered, what: str) -> str:
    return f"{what} {NO_SERIES if given.has_prometheus else HOW_TO_RECORD}"


def _mean_figure(means: Mapping[int, float]) -> PageFigure:
    title = "Mean draft steps by batch size"
    ordered = sorted(means.items())
    rows = [PlotBar(bucket_name(at), value, f"{value:.1f}") for at, value in ordered]
    listed = ", ".join(f"{row.label}: {row.text}" for row in rows)
    plot = plots.bars(("mean-steps", title, f"Batch size and draft steps: {listed}."), rows)
    table = PageTable(
        title, ("Batch size", "Draft steps"), tuple((row.label, row.text) for row in rows)
    )
    return PageFigure(table, plot)


def _steps_over_time(history: WorkHistory) -> PageFigure:
    title = "Draft steps by batch size over time (UTC)"
    labels, steps = times(history.ends), sorted(history.draft_steps.items())
    strips = [
        PlotStrip(bucket_name(at), values, f"last {number(_last(values), 1)}")
        for at, values in steps
    ]
    described = f"One line per batch size from {labels[0]} to {labels[-1]}, all on one scale."
    plot = plots.strips(("steps-over-time", title, described), strips, labels)
    columns = ("End", *(bucket_name(at) for at, _ in steps))
    rows = tuple(
        (label, *(number(values[index], 1) for _, values in steps))
        for index, label in enumerate(labels)
    )
    return PageFigure(PageTable(title, columns, rows), plot)


def _over_time(
    name: str, title: str, labels: Sequence[str], values: Values, digits: int, least: float
) -> PageFigure:
    known = [each for each in values if each is not None]
    described = (
        f"{labels[0]} to {labels[-1]} UTC: least {min(known):,.{digits}f}, mean "
        f"{number(mean(values), digits)}, most {max(known):,.{digits}f}."
        if known
        else "No value is known."
    )
    plot = plots.lines(
        (name, title, described),
        [PlotLine(values)],
        labels,
        bounds=plots.span(values, least=least),
        x_title="end of the period, UTC",
    )
    rows = tuple(
        (label, number(value, digits)) for label, value in zip(labels, values, strict=True)
    )
    return PageFigure(PageTable(title, ("End", title), rows), plot)


def _accept_by_position(positions: Positions) -> PageFigure:
    title = "Accept length by draft position"
    rows, bars = [], [PlotBar("0", 1.0, "1.00")]
    survival = length = 1.0
    for position in sorted({place for _, place in positions}):
        cells = [cell for (_, place), cell in positions.items() if place == position]
        total = PositionTotals(sum(c.reached for c in cells), sum(c.accepted for c in cells))
        rate = _rate(total)
        survival *= rate or 0.0
        length += survival
        bars.append(PlotBar(str(position), length, f"{length:.2f}"))
        rows.append(
            (str(position), f"{total.reached:,.0f}", f"{total.accepted:,.0f}", share(rate),
             f"{length:.2f}")
        )  # fmt: skip
    described = f"Rises from 1 to {length:.2f} after {len(rows)} positions."
    columns = ("Position", "Reached", "Accepted", "Rate", "Accept length")
    plot = plots.bars(("accept-by-position", title, described), bars)
    return PageFigure(PageTable(title, columns, tuple(rows)), plot)


def _rates_by_bucket(positions: Positions) -> PageFigure:
    """Acceptance by position and batch size, as a table."""
    places = sorted({place for _, place in positions})
    rows = tuple(
        (
            bucket_name(at),
            *(share(_rate(positions.get((at, place), PositionTotals()))) for place in places),
        )
        for at in sorted({at for at, _ in positions})
    )
    columns = ("Batch size", *(f"Position {place}" for place in places))
    return PageFigure(PageTable("Accepted draft tokens by batch size and position", columns, rows))


def _rate(total: PositionTotals) -> float | None:
    return min(1.0, total.accepted / total.reached) if total.reached > 0.0 else None


def _last(values: Values) -> float | None:
    return next((each for each in reversed(values) if each is not None), None)
