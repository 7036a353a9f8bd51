"""Draws a recommendation: its table, what each depth would bring, and the command that takes it."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specdecode_operator.kinds import Manifest

WIDTH = 40
FULL, HALF = "█", "▌"
GOOD, FAINT = "green", "dim"


def draw_recommendation(resource: Manifest) -> RenderableType:
    """Everything that the status says of it, or why there is none."""
    metadata, status = resource["metadata"], resource.get("status") or {}
    title = Text(f"{metadata['namespace']}/{metadata['name']}", "bold")
    told = status.get("recommendation")
    if not told:
        return Group(title, Text(f"nothing is recommended: {_why_not(resource)}"))
    parts: list[RenderableType] = [title, _headline(told), Text(""), _table(resource, told)]
    for band in told.get("bands") or ():
        parts += [Text(""), *_plot(band)]
    parts += [Text(""), Text("To take it by hand:", "bold"), Text(told["patchHint"])]
    return Group(*parts)


def bar(share: float, width: int = WIDTH) -> str:
    """A bar as long as a part of one, to half a column."""
    halves = round(max(0.0, min(1.0, share)) * width * 2)
    return FULL * (halves // 2) + HALF * (halves % 2)


def _why_not(resource: Manifest) -> str:
    rollout = (resource.get("spec") or {}).get("rollout") or {}
    if rollout.get("mode") == "Manual":
        return "mode Manual measures nothing; set spec.rollout.mode: Recommend"
    conditions = (resource.get("status") or {}).get("conditions") or ()
    found: Manifest = next(
        (each for each in conditions if each["type"] == "RecommendationReady"), {}
    )
    return f"{found['reason']}, {found['message']}" if found else "no engine was looked at yet"


def _headline(told: Mapping[str, Any]) -> Text:
    seen = f"{told['expectedGain']} tokens per second"
    if told.get("gainLow"):
        seen += f" ({told['gainLow']} to {told['gainHigh']})"
    return Text(f"{seen}, from {told['rounds']} decode rounds; made at {told['madeAt']}")


def _table(resource: Manifest, told: Mapping[str, Any]) -> Table:
    adaptive = (resource["spec"].get("speculation") or {}).get("adaptive") or {}
    now = adaptive.get("batchSizes") or {}
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=FAINT)
    for column in ("BATCH SIZE FROM", "DEPTHS IN THE SPEC", "RECOMMENDED"):
        table.add_column(column)
    for bound, entry in sorted(told["table"].items(), key=lambda item: int(item[0])):
        table.add_row(bound, _depths_at(now, int(bound)), _shown(entry))
    return table


def _depths_at(table: Mapping[str, Any], batch_size: int) -> str:
    below = [bound for bound in table if int(bound) <= batch_size]
    return _shown(table[max(below, key=int)]) if below else "default"


def _shown(entry: Mapping[str, Any]) -> str:
    return ", ".join(map(str, entry["candidateSteps"]))


def _plot(band: Mapping[str, Any]) -> list[RenderableType]:
    """Tokens per second by depth at one band, the best marked."""
    rates = {int(depth): float(rate) for depth, rate in band["rates"].items()}
    title = f"Batch size from {band['batchSize']} ({band['rounds']} rounds), tokens per second"
    lines: list[RenderableType] = [Text(title, "bold")]
    most = max(rates.values(), default=0.0) or 1.0
    for depth, rate in sorted(rates.items()):
        is_best = depth == band.get("best")
        line = Text(f"  depth {depth:>2}  {rate:>9.1f}  ")
        line.append(bar(rate / most), GOOD if is_best else "")
        lines.append(line.append("  best" if is_best else ""))
    if not rates:
        lines.append(Text("  what depths cost here is not known yet", FAINT))
    return lines
