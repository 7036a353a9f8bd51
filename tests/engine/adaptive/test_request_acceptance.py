"""What is learned of single requests: offsets where they differ, nothing where they do not."""

import random

import pytest

from specdecode_engine.adaptive.request_acceptance import (
    OffsetModel,
    RequestAcceptance,
    shifted,
    survival,
)

DEPTH = 5


def serve(own_rates: list[float], rates: list[float], steps: int) -> list[RequestAcceptance]:
    """Let each request accept drafts at a rate of its own; `rates` are those of all."""
    model, draw = OffsetModel(), random.Random(1)
    requests = [RequestAcceptance(DEPTH) for _ in own_rates]
    for _ in range(steps):
        accepted = []
        for rate in own_rates:
            length = 0
            while length < DEPTH and draw.random() < rate:
                length += 1
            accepted.append(length)
        model.learn(requests, accepted, [DEPTH] * len(requests), rates)
    return requests


def test_requests_that_accept_more_than_others_rise_above_those_that_accept_less() -> None:
    requests = serve([0.9, 0.3] * 8, [0.7] * DEPTH, 60)
    good = [one.mark for one in requests[::2]]
    bad = [one.mark for one in requests[1::2]]
    assert min(good) > 0 > max(bad)


def test_requests_that_are_alike_keep_the_rates_of_all() -> None:
    requests = serve([0.7] * 16, [0.7] * DEPTH, 200)
    assert {one.mark for one in requests} == {0}


def test_what_is_not_verified_is_forgotten_and_tried_again() -> None:
    model = OffsetModel()
    model._predicted, model._followed = 100.0, 200.0  # requests are known to differ
    request = RequestAcceptance(DEPTH)
    for _ in range(3):
        model.learn([request], [0], [DEPTH], [0.7] * DEPTH)
    known, low = request.information, request.mark
    assert low < 0
    assert not low % 2
    for _ in range(20):
        model.learn([request], [0], [0], [0.7] * DEPTH)
    assert request.information < known / 10
    assert request.mark > low
    assert request.mark % 2  # its first position is due


def test_the_mean_offset_is_that_of_the_verified_positions() -> None:
    model = OffsetModel()
    model._predicted, model._followed = 100.0, 200.0
    good, bad = RequestAcceptance(DEPTH), RequestAcceptance(DEPTH)
    good.surplus, good.information = 2.0, 1.0
    bad.surplus, bad.information = -2.0, 1.0
    rates = [0.7] * DEPTH
    assert model.learn([good, bad], [3, 3], [DEPTH, DEPTH], rates) == pytest.approx(0.0)
    good.surplus, good.information = 2.0, 1.0
    bad.surplus, bad.information = -2.0, 1.0
    assert model.learn([good, bad], [3, 0], [DEPTH, 0], rates) > 0.5


def test_an_offset_multiplies_the_odds() -> None:
    assert shifted([0.5, 0.8], 0.0) == pytest.approx([0.5, 0.8])
    assert shifted([0.5], 1.0)[0] == pytest.approx(0.7310586)
    assert survival([0.5, 0.5], 0) == pytest.approx([0.5, 0.25])
    assert survival([0.5, 0.5], 2)[1] == pytest.approx(0.7310586**2)
