"""The load that autoscalers follow."""

import math

import pytest

from specdecode_api.boot import EngineBoot
from specdecode_engine.startup.build import build_core
from specdecode_engine.stats.counters import MEMORY_STEPS, RecentSteps, load
from specdecode_engine.stats.prometheus import EngineMetrics
from tests.engine.whole_engine import boot_of, requests_of


@pytest.mark.parametrize(
    ("requests", "places", "accept_length", "expected"),
    [
        (0, 64, 3.0, 0.0),
        (64, 64, 1.0, 1.0),  # full, and plain
        (64, 64, 3.0, 1 / 3),
        (128, 64, 3.0, 2 / 3),  # as many wait as run
        (32, 64, 1.5, 1 / 3),  # half the slots at half the accept length are the same load
        (64, 64, 0.0, 1.0),  # less than plain decoding adds no step
        (5, 0, 3.0, 0.0),  # not loaded yet
    ],
)
def test_load_is_requests_by_places_and_accept_length(requests, places, accept_length, expected):
    assert load(requests, places, accept_length) == pytest.approx(expected)


def test_an_engine_at_the_same_load_has_the_same_time_per_token_at_any_accept_length():
    """A compute-bound step takes time in proportion to its number of requests."""

    def seconds_per_token(requests, accept_length):
        return 0.001 * requests / accept_length

    target = 0.25
    times = []
    for accept_length in (1.0, 2.0, 4.0):
        requests = round(target * 64 * accept_length)
        assert load(requests, 64, accept_length) == pytest.approx(target)
        times.append(seconds_per_token(requests, accept_length))
    assert times == pytest.approx([times[0]] * 3)


def test_the_accept_length_of_late_forgets_what_was():
    recent = RecentSteps()
    assert recent.accept_length == 1.0
    for _ in range(500):
        recent.count(tokens=40, request_steps=10)
    assert recent.accept_length == pytest.approx(4.0)
    for _ in range(int(MEMORY_STEPS / 10)):
        recent.count(tokens=10, request_steps=10)
    assert recent.accept_length == pytest.approx(1 + 3 / math.e, rel=0.02)
    for _ in range(1000):
        recent.count(tokens=10, request_steps=10)
    assert recent.accept_length == pytest.approx(1.0, abs=0.001)


def test_rounds_weigh_by_their_requests():
    recent = RecentSteps()
    recent.count(tokens=4, request_steps=1)
    recent.count(tokens=9, request_steps=9)
    assert recent.accept_length == pytest.approx(13 / 10, rel=0.01)


def test_a_scrape_exports_the_load(checkpoints):
    core = build_core(EngineBoot.model_validate(boot_of(checkpoints, "NONE", 1)))
    for request in requests_of(checkpoints.vocab, 3, 20):
        core.submit(request)
    core.step()
    exported = EngineMetrics(core.snapshot).registry.get_sample_value("specdecode_load")
    assert exported == pytest.approx(load(3, core.scheduler.limits.max_running, 1.0))
