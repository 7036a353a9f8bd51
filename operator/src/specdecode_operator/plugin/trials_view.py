"""Draws trials as a table."""

from collections.abc import Sequence
from datetime import datetime

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.plugin.wording import age

_GOOD = frozenset({"Promoted", "Passed"})


def draw_trials(
    trials: Sequence[Manifest], now: datetime, *, with_namespace: bool
) -> RenderableType:
    """A line per trial."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    columns = ("NAME", "DEPLOYMENT", "STRATEGY", "PHASE", "VERDICT", "GAIN", "AGE")
    for column in (*(["NAMESPACE"] if with_namespace else ()), *columns):
        table.add_column(column, no_wrap=True)
    table.add_column("MESSAGE", overflow="fold")
    for trial in trials:
        table.add_row(*_cells(trial, now, with_namespace=with_namespace))
    return table


def _cells(trial: Manifest, now: datetime, *, with_namespace: bool) -> list[str | Text]:
    metadata, spec, status = trial["metadata"], trial["spec"], trial.get("status") or {}
    verdict = str(status.get("verdict") or "")
    created = datetime.fromisoformat(metadata["creationTimestamp"])
    return [
        *([Text(metadata["namespace"])] if with_namespace else []),
        Text(metadata["name"]),
        Text(spec["deployment"]),
        str(status.get("strategy") or spec.get("strategy") or ""),
        str(status.get("phase") or "Pending"),
        Text(verdict, "green" if verdict in _GOOD else ""),
        Text(_gain(status.get("interval"))),
        age((now - created).total_seconds()),
        Text(str(status.get("message") or "")),
    ]


def _gain(interval: Manifest | None) -> str:
    """The gain with its interval in percent, as far as it is known."""
    if not interval:
        return ""
    try:
        gain, low, high = (float(interval[name]) for name in ("gain", "low", "high"))
    except (KeyError, ValueError):
        return ""
    return f"{gain:+.1%} ({low:+.1%} … {high:+.1%})"
