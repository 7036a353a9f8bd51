"""Draws progress: bars on a terminal that is refreshed, lines of text elsewhere."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from specdecode_operator.plugin.progress import ProgressLine

BAR_WIDTH = 24


def draw_progress(lines: Sequence[ProgressLine], *, with_bars: bool) -> RenderableType:
    """A line each; the share is a number too, so that a bar needs no colour."""
    table = Table.grid(padding=(0, 2))
    for _ in range(4 if with_bars else 3):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for line in lines:
        share = "" if line.share is None else f"{int(100 * line.share)}%"
        table.add_row(
            Text(line.subject),
            Text(line.activity),
            *([_bar(line.share)] if with_bars else []),
            Text(share, justify="right"),
            Text(line.text),
        )
    return table


def _bar(share: float | None) -> RenderableType:
    """A bar of at most `BAR_WIDTH` columns; nothing where no share is known."""
    return Text("") if share is None else ProgressBar(1.0, share, width=BAR_WIDTH)
