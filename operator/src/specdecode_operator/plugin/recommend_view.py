"""Draws a recommendation: table, tokens per second by draft steps, command to apply it."""

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.plugin import lookup
from specdecode_operator.plugin.lookup import Scope
from specdecode_operator.plugin.reach import Reader

WIDTH = 40
FULL, HALF = "█", "▌"
GOOD, FAINT = "green", "dim"


def draw_recommendation(resource: Manifest) -> RenderableType:
    """The recommendation in the status, or why there is none."""
    metadata, status = resource["metadata"], resource.get("status") or {}
    title = Text(f"{metadata['namespace']}/{metadata['name']}", "bold")
    advice = status.get("recommendation")
    if not advice:
        return Group(title, Text(f"no recommendation: {why_none(resource)}"))
    parts: list[RenderableType] = [title, _headline(advice), Text(""), _table(resource, advice)]
    for bucket in advice.get("batchBuckets") or ():
        parts += [Text(""), *_plot(bucket)]
    parts += [Text(""), Text("To apply it manually:", "bold"), Text(advice["patchHint"])]
    return Group(*parts)


def bar(share: float, width: int = WIDTH) -> str:
    """A bar as long as a part of one, to half a column."""
    halves = round(max(0.0, min(1.0, share)) * width * 2)
    return FULL * (halves // 2) + HALF * (halves % 2)


def why_none(resource: Manifest) -> str:
    """Why the status contains no recommendation."""
    rollout = (resource.get("spec") or {}).get("rollout") or {}
    if rollout.get("mode") == "Manual":
        return "mode Manual measures nothing; set spec.rollout.mode: Recommend"
    conditions = (resource.get("status") or {}).get("conditions") or ()
    found: Manifest = next(
        (each for each in conditions if each["type"] == "RecommendationReady"), {}
    )
    return f"{found['reason']}, {found['message']}" if found else "no engine has been observed yet"


def _headline(advice: Mapping[str, Any]) -> Text:
    seen = f"{advice['expectedGain']} tokens per second"
    if advice.get("gainLow"):
        seen += f" ({advice['gainLow']} to {advice['gainHigh']})"
    return Text(f"{seen}, from {advice['decodeSteps']} decode steps; made at {advice['madeAt']}")


def _table(resource: Manifest, advice: Mapping[str, Any]) -> Table:
    adaptive = (resource["spec"].get("speculation") or {}).get("adaptive") or {}
    now = adaptive.get("batchSizes") or ()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=FAINT)
    for column in ("BATCH SIZE FROM", "STEPS IN THE SPEC", "RECOMMENDED"):
        table.add_column(column)
    for entry in sorted(advice["table"], key=itemgetter("from")):
        table.add_row(str(entry["from"]), _steps_at(now, entry["from"]), _shown(entry))
    return table


def _steps_at(table: Iterable[Mapping[str, Any]], batch_size: int) -> str:
    below = [entry for entry in table if entry["from"] <= batch_size]
    return _shown(max(below, key=itemgetter("from"))) if below else "default"


def _shown(entry: Mapping[str, Any]) -> str:
    return ", ".join(map(str, entry["candidateSteps"]))


def _plot(bucket: Mapping[str, Any]) -> list[RenderableType]:
    """Tokens per second by draft steps in one batch bucket, the best marked."""
    rates = {int(num_steps): float(rate) for num_steps, rate in bucket["rates"].items()}
    title = (
        f"Batch size from {bucket['batchSize']} ({bucket['decodeSteps']} steps), tokens per second"
    )
    lines: list[RenderableType] = [Text(title, "bold")]
    most = max(rates.values(), default=0.0) or 1.0
    for num_steps, rate in sorted(rates.items()):
        is_best = num_steps == bucket.get("best")
        line = Text(f"  {num_steps:>2} draft steps  {rate:>9.1f}  ")
        line.append(bar(rate / most), GOOD if is_best else "")
        lines.append(line.append("  best" if is_best else ""))
    if not rates:
        lines.append(Text("  the cost of draft steps is not known here yet", FAINT))
    return lines


async def recommend(reader: Reader, scope: Scope) -> RenderableType:
    """The current output."""
    found = await lookup.resources(reader, scope)
    return draw_recommendation(found[0])
