"""Geometry of the plots."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specdecode_operator.plugin.report import plots
from specdecode_operator.plugin.report.plots import PlotBar, PlotLine, PlotStrip

HEAD = ("id", "title", "description")
values = st.lists(st.none() | st.floats(allow_nan=True, allow_infinity=True), max_size=60)


@given(values)
@example([5e-324])
@example([0.0, 5e-324])
@example([1e-300, 2e-300])
def test_every_coordinate_is_finite_and_inside_the_picture(drawn):
    labels = [str(at) for at in range(len(drawn))]
    made = (
        plots.lines(HEAD, [PlotLine(drawn)], labels, bounds=plots.span(drawn), area=(drawn, drawn)),
        plots.bars(HEAD, [PlotBar("a", each, "text", "mark") for each in drawn]),
        plots.strips(HEAD, [PlotStrip("a", drawn, "text")], labels),
    )
    for plot in made:
        places = [*plot.dots, *((each.x, each.y) for each in plot.texts)]
        places += [(each.x + each.width, each.y + each.height) for each in plot.boxes]
        places += [place for path in plot.paths for place in points(path.d)]
        assert all(0.0 <= x <= plot.width and 0.0 <= y <= plot.height for x, y in places)


def points(d):
    """Points of the lines of a path; of a level only its start."""
    for part in d.removeprefix("M").removesuffix("Z").split("L"):
        x, y = part.split("H")[0].split()
        yield float(x), float(y)


def test_a_line_is_interrupted_where_nothing_is_known():
    made = plots.lines(
        HEAD,
        [PlotLine((1.0, 2.0, None, 4.0, math.nan, 6.0, 7.0))],
        list("abcdefg"),
        bounds=(0.0, 8.0),
    )
    drawn = [each.d for each in made.paths if each.style == "line"]
    assert [each.count("L") for each in drawn] == [1, 1]
    assert len(made.dots) == 5


def test_values_beyond_the_axis_are_drawn_at_its_edge():
    made = plots.lines(
        HEAD, [PlotLine((-math.inf, -50.0, 5.0, 50.0))], list("abcd"), bounds=(0.0, 10.0)
    )
    heights = [y for _, y in made.dots]
    assert heights == [plots.HEIGHT - plots.BOTTOM, 82.0, plots.TOP]


def test_bars_are_as_long_as_their_values():
    made = plots.bars(
        HEAD, [PlotBar("a", 50.0, "50"), PlotBar("b", 25.0, "25"), PlotBar("c", None, "–")]
    )
    assert [each.width for each in made.boxes] == [202.0, 101.0]
    assert [each.text for each in made.texts] == ["a", "50", "b", "25", "c", "–"]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.0, 10.0, (0.0, 2.0, 4.0, 6.0, 8.0, 10.0)),
        (1.0, 3.4, (1.0, 1.5, 2.0, 2.5, 3.0)),
        (-0.05, 0.06, (-0.05, -0.025, 0.0, 0.025, 0.05)),
        (0.0, 1200.0, (0.0, 250.0, 500.0, 750.0, 1000.0)),
    ],
)
def test_ticks_are_round_numbers_within_the_bounds(low, high, ticks):
    assert plots.nice_ticks(low, high) == pytest.approx(ticks)


def test_tick_labels_are_distinct():
    made = plots.lines(HEAD, [PlotLine((0.0, 0.06))], ["a", "b"], bounds=(-0.05, 0.06))
    labels = [each.text for each in made.texts if each.anchor == "end"]
    assert labels[:3] == ["-0.050", "-0.025", "0.000"]


def test_the_axis_of_equal_values_has_a_height():
    assert plots.span([3.0, 3.0]) == (3.0 - 0.24, 6.0 + 0.24)
    assert plots.span([]) == (-0.08, 1.08)
    assert plots.span([None, math.nan], least=1.0) == (1.0, 2.08)
