"""Geometry of the plots: from numbers to shapes in the coordinates of an SVG. Pure.

Colour never carries information alone: lines differ in their dashes, the marked bar has an outline
and a word, and a table next to each plot contains its numbers.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

WIDTH = 400.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 14.0, 12.0, 38.0
HEIGHT = 190.0
BAR_STEP, BAR_HEIGHT = 26.0, 16.0
STRIP_STEP, STRIP_HEIGHT = 34.0, 22.0
LABELS_WIDTH, VALUES_WIDTH = 74.0, 124.0
MAX_MARKS = 24
"""Points that are drawn as dots; more of them would hide the line."""

LARGEST = 1e15
"""Larger values are drawn at the edge of the plot."""
FLAT = 1e-9
"""Part of a value below which differences are not drawn."""

Values = Sequence[float | None]
Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class PlotText:
    """Words at a point; `anchor` as in SVG."""

    x: float
    y: float
    text: str
    anchor: str = "start"
    style: str = ""


@dataclass(frozen=True, slots=True)
class PlotPath:
    """A line or an area, as the attribute `d` of an SVG path."""

    d: str
    style: str


@dataclass(frozen=True, slots=True)
class PlotBox:
    """A bar."""

    x: float
    y: float
    width: float
    height: float
    style: str


@dataclass(frozen=True, slots=True)
class Plot:
    """Everything that the template draws; `id` is a word of this program, unique on the page."""

    id: str
    title: str
    description: str
    height: float
    paths: tuple[PlotPath, ...] = ()
    boxes: tuple[PlotBox, ...] = ()
    dots: tuple[tuple[float, float], ...] = ()
    texts: tuple[PlotText, ...] = ()
    width: float = WIDTH


@dataclass(frozen=True, slots=True)
class PlotLine:
    """A line over the points of the x axis; it is interrupted where a value is None."""

    values: Values
    style: str = "line"
    has_dots: bool = True


@dataclass(frozen=True, slots=True)
class PlotBar:
    """A bar with its label; `text` is printed at its end, `mark` is a word after it."""

    label: str
    value: float | None
    text: str
    mark: str = ""


@dataclass(frozen=True, slots=True)
class PlotStrip:
    """One row of a plot of small multiples; `text` is printed at its end."""

    label: str
    values: Values
    text: str


def lines(
    head: tuple[str, str, str],
    drawn: Sequence[PlotLine],
    x_labels: Sequence[str],
    *,
    bounds: Range,
    unit: str = "",
    x_title: str = "",
    area: tuple[Values, Values] | None = None,
    rule: float | None = None,
) -> Plot:
    """Lines over equally spaced points.

    Args:
        head: id, title and description.
        x_labels: one per point; about five of them are printed.
        bounds: of the y axis; values beyond them are drawn at the edge.
        area: lower and upper bounds that are shaded.
        rule: value with a horizontal line of its own.
    """
    scale = _Scale(len(x_labels), bounds)
    ticks = nice_ticks(*bounds)
    digits = _digits(ticks)
    paths = [PlotPath(_level(scale.y(tick)), "grid") for tick in ticks]
    if area is not None:
        paths += [PlotPath(d, "area") for d in _areas(*area, scale)]
    if rule is not None:
        paths.append(PlotPath(_level(scale.y(rule)), "rule"))
    dots: list[tuple[float, float]] = []
    for line in drawn:
        runs = _runs(line.values, scale)
        paths += [PlotPath(_polyline(run), line.style) for run in runs if len(run) > 1]
        few = len(x_labels) <= MAX_MARKS and line.has_dots
        dots += [point for run in runs if few or len(run) == 1 for point in run]
    texts = [
        PlotText(LEFT - 6.0, scale.y(tick) + 4.0, f"{tick:.{digits}f}{unit}", "end")
        for tick in ticks
    ]
    texts += _x_axis(x_labels, scale)
    texts.append(PlotText((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 5.0, x_title, "middle", "axis"))
    return Plot(*head, HEIGHT, tuple(paths), (), tuple(dots), tuple(texts))


def bars(head: tuple[str, str, str], rows: Sequence[PlotBar]) -> Plot:
    """Horizontal bars from 0; a row without a value has only its text."""
    most = _largest(each.value for each in rows)
    room = WIDTH - LABELS_WIDTH - VALUES_WIDTH
    boxes, texts = [], []
    for index, row in enumerate(rows):
        y = TOP + index * BAR_STEP
        length = 0.0
        if row.value is not None and math.isfinite(row.value):
            length = room * max(0.0, min(1.0, row.value / most))
            style = "bar marked" if row.mark else "bar"
            boxes.append(PlotBox(LABELS_WIDTH, y, round(length, 1), BAR_HEIGHT, style))
        middle = y + BAR_HEIGHT - 4.0
        words = f"{row.text} {row.mark}".strip()
        style = "strong" if row.mark else ""
        texts.append(PlotText(LABELS_WIDTH - 6.0, middle, row.label, "end", style))
        texts.append(PlotText(LABELS_WIDTH + round(length, 1) + 6.0, middle, words, "start", style))
    return Plot(*head, 2 * TOP + len(rows) * BAR_STEP, (), tuple(boxes), (), tuple(texts))


def strips(head: tuple[str, str, str], rows: Sequence[PlotStrip], x_labels: Sequence[str]) -> Plot:
    """One small line per row, all with the same scale from 0."""
    most = _largest(value for row in rows for value in row.values)
    height = TOP + len(rows) * STRIP_STEP + BOTTOM
    paths, dots, texts = [], [], []
    scale = _Scale(len(x_labels), (0.0, most))
    for index, row in enumerate(rows):
        top = TOP + index * STRIP_STEP
        scale = _Scale(len(x_labels), (0.0, most), top, top + STRIP_HEIGHT, LABELS_WIDTH, 60.0)
        paths.append(PlotPath(_level(top + STRIP_HEIGHT, LABELS_WIDTH, 60.0), "grid"))
        runs = _runs(row.values, scale)
        paths += [PlotPath(_polyline(run), "line") for run in runs if len(run) > 1]
        dots += [run[0] for run in runs if len(run) == 1]
        texts.append(PlotText(LABELS_WIDTH - 6.0, top + STRIP_HEIGHT - 4.0, row.label, "end"))
        texts.append(PlotText(WIDTH - 54.0, top + STRIP_HEIGHT - 4.0, row.text))
    texts += _x_axis(x_labels, scale, height - 21.0)
    return Plot(*head, height, tuple(paths), (), tuple(dots), tuple(texts))


def span(values: Values, *, least: float | None = None) -> Range:
    """Bounds of a y axis that contain all values, with room for the line.

    Args:
        least: lower bound; by default slightly below the smallest value.
    """
    known = [
        max(-LARGEST, min(LARGEST, value))
        for value in values
        if value is not None and math.isfinite(value)
    ]
    low = min(known, default=0.0) if least is None else least
    high = max([*known, low])
    if high - low <= FLAT * max(1.0, abs(low)):
        high = low + (abs(low) if abs(low) > FLAT else 1.0)
    room = 0.08 * (high - low)
    return (low - room if least is None else low), high + room


def nice_ticks(low: float, high: float, most: int = 5) -> tuple[float, ...]:
    """At most `most` + 1 multiples of 1, 2, 2.5 or 5 (times a power of ten) within the bounds."""
    rough = (high - low) / most
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * each for each in (1, 2, 2.5, 5, 10) if unit * each >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return tuple(round(index * step, 12) + 0.0 for index in range(first, last + 1))


class _Scale:
    """Positions of points and values; values beyond the bounds are drawn at the edge."""

    def __init__(
        self,
        count: int,
        bounds: Range,
        top: float = TOP,
        bottom: float = HEIGHT - BOTTOM,
        left: float = LEFT,
        right: float = RIGHT,
    ) -> None:
        self._count, self._bounds = count, bounds
        self._top, self._bottom = top, bottom
        self._left, self._right = left, WIDTH - right

    def x(self, index: int) -> float:
        part = index / (self._count - 1) if self._count > 1 else 0.5
        return round(self._left + part * (self._right - self._left), 1)

    def y(self, value: float) -> float:
        low, high = self._bounds
        part = max(0.0, min(1.0, (value - low) / (high - low)))
        return round(self._bottom - part * (self._bottom - self._top), 1)


def _runs(values: Values, scale: _Scale) -> list[list[tuple[float, float]]]:
    """Points of consecutive known values."""
    runs: list[list[tuple[float, float]]] = [[]]
    for index, value in enumerate(values):
        if value is None or not math.isfinite(value):
            runs.append([])
        else:
            runs[-1].append((scale.x(index), scale.y(value)))
    return [run for run in runs if run]


def _areas(low: Values, high: Values, scale: _Scale) -> list[str]:
    """Outlines of the shaded parts; a point without neighbours is a vertical line."""
    found = []
    both = [
        None if a is None or b is None or math.isnan(a) or math.isnan(b) else (a, b)
        for a, b in zip(low, high, strict=True)
    ]
    start = 0
    while start < len(both):
        end = start
        while end < len(both) and both[end] is not None:
            end += 1
        run = [(scale.x(start + at), each) for at, each in enumerate(both[start:end]) if each]
        if run:
            down = [(x, scale.y(a)) for x, (a, _) in run]
            up = [(x, scale.y(b)) for x, (_, b) in reversed(run)]
            found.append(f"{_polyline([*down, *up])}Z")
        start = end + 1
    return found


def _polyline(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points)


def _level(y: float, left: float = LEFT, right: float = RIGHT) -> str:
    return f"M{left:g} {y:g}H{WIDTH - right:g}"


def _x_axis(labels: Sequence[str], scale: _Scale, y: float = HEIGHT - 21.0) -> list[PlotText]:
    """About five labels, the last one included."""
    if not labels:
        return []
    last = len(labels) - 1
    step = max(1, math.ceil(last / 4))
    shown = range(last, -1, -step)
    return [PlotText(scale.x(index), y, labels[index], _anchor(index, last)) for index in shown]


def _anchor(index: int, last: int) -> str:
    if last == 0:
        return "middle"
    return "end" if index == last else "start" if index == 0 else "middle"


def _digits(ticks: Sequence[float]) -> int:
    """Decimals that distinguish the ticks."""
    least = min((after - before for before, after in pairwise(ticks)), default=1.0)
    return next((each for each in range(6) if _is_whole(least * 10.0**each)), 6)


def _is_whole(value: float) -> bool:
    return abs(value - round(value)) < 1e-6 * value


def _largest(values: Iterable[float | None]) -> float:
    """The largest known value, or 1 where none is above 0."""
    known = [each for each in values if each is not None and math.isfinite(each)]
    return max([*known, 0.0]) or 1.0
