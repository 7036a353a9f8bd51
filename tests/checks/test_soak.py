"""What a soak measures: the slope of memory, and what is left at the end."""

import os
from dataclasses import replace

import pytest

from checks.fuzz.cases import SOAK_KINDS, draw_case
from checks.soak.__main__ import SoakResult
from checks.soak.measures import (
    MemoryPoint,
    Resources,
    read_metric,
    resident_bytes,
    slope_mb_per_1000,
)
from checks.soak.requests import SoakLoad

RESOURCES = Resources(threads=9, descriptors=20, used_pages=0, running=0, waiting=0)


def points(mb_per_request: float) -> tuple[MemoryPoint, ...]:
    numbers = range(0, 3000, 100)
    return tuple(MemoryPoint(n, 10**9 + round(n * mb_per_request * 1e6)) for n in numbers)


def result(mb_per_request: float = 0.0, end: Resources = RESOURCES, **load: object) -> SoakResult:
    sent = SoakLoad(1, 1, 1, **load)  # type: ignore[arg-type]
    return SoakResult(sent, points(mb_per_request), RESOURCES, end)


def test_the_slope_is_that_of_memory_over_requests() -> None:
    assert slope_mb_per_1000(points(0.002)) == pytest.approx(2.0)
    assert slope_mb_per_1000(points(0.0)) == 0
    assert slope_mb_per_1000(points(-0.001)) == pytest.approx(-1.0)


def test_one_jump_is_not_a_slope() -> None:
    steady = list(points(0.0))
    steady[-1] = replace(steady[-1], resident_bytes=2 * 10**9)
    assert slope_mb_per_1000(steady) == 0


def test_too_few_points_are_refused() -> None:
    with pytest.raises(ValueError, match="2 points of memory; at least 3"):
        slope_mb_per_1000(points(0.0)[:2])


def test_a_leak_of_anything_fails_the_soak() -> None:
    assert result().has_passed()
    assert not result(mb_per_request=0.0011).has_passed()
    for name in ("threads", "descriptors", "used_pages", "running", "waiting"):
        more = replace(RESOURCES, **{name: 21})
        assert result(end=more).left() == (
            f"{name}: {getattr(RESOURCES, name)} at the start, 21 at the end",
        )
        assert not result(end=more).has_passed()
    assert not result(defects=["5xx"]).has_passed()
    assert not result(refused=1).has_passed()


def test_a_metric_is_read_by_name_and_label() -> None:
    shown = '# HELP a b\na{state="free"} 3.0\na{state="used"} 7.0\nrunning 2.0\n'
    assert read_metric(shown, "a", 'state="used"') == 7
    assert read_metric(shown, "running") == 2
    with pytest.raises(ValueError, match="no waiting"):
        read_metric(shown, "waiting")


def test_the_memory_of_a_process_is_read_in_bytes() -> None:
    assert resident_bytes(os.getpid()) > 10**7


def test_a_soak_sends_no_huge_bodies() -> None:
    cases = [draw_case(1, index, SOAK_KINDS) for index in range(100)]
    assert {"huge", "bad_head", "route"}.isdisjoint(case.kind for case in cases)
    assert max(len(case.request.body) for case in cases) < 4 * 2**20
