"""The parts of a page, ready for the template."""

from dataclasses import dataclass

from specdecode_operator.plugin.report.plots import Plot


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table; `numbers` is the index of the first column with right-aligned numbers."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: int = 1


@dataclass(frozen=True, slots=True)
class PageFigure:
    """A table with the plot of its numbers; None where a plot would show nothing."""

    table: PageTable
    plot: Plot | None = None


@dataclass(frozen=True, slots=True)
class PageSection:
    """A part of the page; what is empty is left out.

    `missing` describes what the section lacks, and how to get it.
    """

    id: str
    title: str
    text: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    figures: tuple[PageFigure, ...] = ()
    code: str = ""
    parts: tuple["PageSection", ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReportPage:
    """The whole page."""

    title: str
    summary: tuple[tuple[str, str], ...]
    sections: tuple[PageSection, ...]
    made_at: str
