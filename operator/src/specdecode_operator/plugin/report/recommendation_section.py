"""Tokens per second by draft steps, with the recommendation. Pure."""

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from specdecode_operator.plugin.recommend_view import why_none
from specdecode_operator.plugin.report import plots
from specdecode_operator.plugin.report.configuration_section import steps_text
from specdecode_operator.plugin.report.gathered import Gathered
from specdecode_operator.plugin.report.history import bucket_name, finite
from specdecode_operator.plugin.report.page import PageFigure, PageSection, PageTable
from specdecode_operator.plugin.report.plots import PlotBar
from specdecode_operator.plugin.wording import number

TITLE = "Tokens per second by draft steps"


def recommendation_section(given: Gathered) -> PageSection:
    """The recommendation with what it is based on; why there is none otherwise."""
    advice = given.status.get("recommendation")
    if not advice:
        why = why_none(given.resource)
        text = f"There is no recommendation: {why}."
        return PageSection("recommendation", TITLE, missing=(text,))
    buckets = advice.get("batchBuckets") or ()
    figures = [_recommended(advice)]
    figures += [_band(index, each) for index, each in enumerate(buckets)]
    return PageSection(
        "recommendation",
        TITLE,
        text=("Expected tokens per second of a request; the bar marked “best” is recommended.",),
        facts=_facts(advice),
        figures=tuple(figures),
        code=str(advice.get("patchHint") or ""),
        missing=() if buckets else ("The recommendation contains no measured batch sizes.",),
    )


def _facts(advice: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    low, high = advice.get("gainLow"), advice.get("gainHigh")
    gain = str(advice["expectedGain"]) + (f" ({low} to {high})" if low and high else "")
    return (
        ("Expected gain", gain),
        ("Decode steps measured", f"{advice['decodeSteps']:,}"),
        ("Made at", str(advice["madeAt"])),
    )


def _recommended(advice: Mapping[str, Any]) -> PageFigure:
    rows = tuple(
        (str(each["from"]), steps_text(each.get("candidateSteps") or ()))
        for each in sorted(advice["table"], key=itemgetter("from"))
    )
    return PageFigure(PageTable("Recommended table", ("Batch size from", "Draft steps"), rows))


def _band(index: int, bucket: Mapping[str, Any]) -> PageFigure:
    """Tokens per second in one batch bucket."""
    name = bucket_name(int(bucket["batchSize"]))
    title = f"Batch size {name}, {int(bucket['decodeSteps']):,} decode steps"
    rates = {num_steps: finite(rate) for num_steps, rate in (bucket.get("rates") or {}).items()}
    best = str(bucket.get("best"))
    ordered = sorted(rates.items(), key=lambda item: finite(item[0]) or 0.0)
    bars = [
        PlotBar(num_steps, rate, number(rate, 1), "◀ best" if num_steps == best else "")
        for num_steps, rate in ordered
    ]
    rows = tuple((bar.label, bar.text, "recommended" if bar.mark else "") for bar in bars)
    table = PageTable(title, ("Draft steps", "Tokens/s", ""), rows)
    if not bars:
        return PageFigure(table)
    kept = "" if any(bar.mark for bar in bars) else " What is in force should stay."
    listed = ", ".join(f"{bar.label}: {bar.text} {bar.mark}".strip() for bar in bars)
    described = f"Draft steps and tokens per second: {listed}.{kept}"
    return PageFigure(table, plots.bars((f"rates-{index}", title, described), bars))
