"""How far downloads, loading, capture and trials are, and how that is drawn."""

import pytest

from specdecode_api.report import ModelReport, Progress, StartProgress
from specdecode_operator.plugin.diagnosis import diagnose
from specdecode_operator.plugin.progress import (
    ProgressLine,
    model_progress,
    pod_progress,
    trial_progress,
)
from specdecode_operator.plugin.progress_view import BAR_WIDTH, draw_progress
from specdecode_operator.plugin.status_view import draw_diagnosis

RESOURCE = {"metadata": {"name": "chat", "namespace": "default"}, "spec": {}}


def model(role, state, done=0, total=None):
    return ModelReport(
        role=role, uri="hf://org/name", state=state, bytes_done=done, bytes_total=total
    )


def lines(**progress):
    return [*pod_progress("chat-a", Progress(**progress))]


def test_downloads_have_a_line_each_until_they_are_ready():
    found = lines(
        models=(
            model("target", "Ready", 5, 5),
            model("draft", "Downloading", 1_500_000_000, 6_000_000_000),
            model("draft", "Downloading", 5),
            model("draft", "Waiting"),
        )
    )
    assert found == [
        ProgressLine("chat-a", "download of the draft", 0.25, "1.50 of 6.00 GB"),
        ProgressLine("chat-a", "download of the draft", None, "Downloading"),
        ProgressLine("chat-a", "download of the draft", None, "Waiting"),
    ]


@pytest.mark.parametrize(
    ("start", "share", "text"),
    [
        (StartProgress(stage="importing torch"), None, ""),
        (StartProgress(stage="x", done=7, total=0, unit="pair"), None, ""),
        (StartProgress(stage="x", done=3, total=12, unit="pair"), 0.25, "3 of 12"),
        (StartProgress(stage="x", done=99, total=12, unit="pair"), 1.0, "99 of 12"),
        (StartProgress(stage="x", done=10**6, total=4 * 10**6, unit="B"), 0.25, "1.00 of 4.00 MB"),
    ],
)
def test_the_start_of_an_engine_has_a_line(start, share, text):
    assert lines(start=start) == [ProgressLine("chat-a", start.stage, share, text)]


def test_an_engine_that_serves_has_no_line():
    assert lines() == []


def test_a_stage_cannot_command_the_terminal():
    (line,) = lines(start=StartProgress(stage="a\x1b[2Jb"))
    assert line.activity == "a\ufffd[2Jb"


def test_downloads_are_read_from_the_status_too():
    models = [
        {"role": "target", "state": "Downloading", "bytesDone": 5, "bytesTotal": 10},
        {"role": "draft", "state": "Ready"},
        {"state": "Sideways"},
    ]
    assert [*model_progress(RESOURCE | {"status": {"models": models}})] == [
        ProgressLine("models", "download of the target", 0.5, "0.00 of 0.00 MB"),
        ProgressLine("models", "download of the ", None, "Sideways"),
    ]
    assert [*model_progress(RESOURCE)] == []


@pytest.mark.parametrize(
    ("guard", "rollout", "share", "longest"),
    [
        ({"maxDuration": "30m"}, {"guard": {"maxDuration": "1h"}}, 0.5, "30m"),
        ({}, {"guard": {"maxDuration": "1h"}}, 0.25, "60m"),
        ({"maxDuration": "soon"}, {}, 0.125, "120m"),
        (None, None, 0.125, "120m"),
    ],
)
def test_a_trial_is_as_far_as_it_has_measured(guard, rollout, share, longest):
    trial = {
        "metadata": {"name": "try-1"},
        "spec": {"guard": guard},
        "status": {"phase": "Running", "measuredSeconds": 900, "pairs": 4},
    }
    line = trial_progress(trial, RESOURCE | {"spec": {"rollout": rollout}})
    text = f"measured 15m of at most {longest}, 4 pairs"
    assert line == ProgressLine("try-1", "trial Running", share, text)


def test_a_trial_that_waits_has_measured_nothing():
    line = trial_progress({"metadata": {"name": "try-1"}}, RESOURCE)
    assert (line.activity, line.share) == ("trial Pending", 0.0)


SHOWN = [
    ProgressLine("chat-a", "loading target", 0.5, "1.00 of 2.00 GB"),
    ProgressLine("chat-b", "importing torch", None, ""),
]


def test_bars_are_bounded_and_readable_without_colour(paint):
    drawn = paint(draw_progress(SHOWN, with_bars=True), width=300)
    first, second = drawn.splitlines()
    assert first.split() == [
        "chat-a", "loading", "target", "━" * (BAR_WIDTH // 2), "50%", "1.00", "of", "2.00", "GB",
    ]  # fmt: skip
    assert second.split() == ["chat-b", "importing", "torch"]
    assert max(map(len, drawn.splitlines())) < 90


def test_without_bars_a_line_of_text_is_left(paint):
    drawn = paint(draw_progress(SHOWN, with_bars=False))
    assert drawn.splitlines()[0].split() == [
        "chat-a", "loading", "target", "50%", "1.00", "of", "2.00", "GB",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [20, 40, 80])
def test_a_narrow_terminal_gets_no_longer_lines(paint, width):
    drawn = paint(draw_progress(SHOWN, with_bars=True), width=width)
    assert max(map(len, drawn.splitlines())) <= width


def test_the_diagnosis_has_progress_only_where_there_is_any(paint, now):
    diagnosis = diagnose(RESOURCE, [], [], now)
    assert "Progress" not in paint(draw_diagnosis(diagnosis))
    shown = paint(draw_diagnosis(diagnosis, SHOWN, with_bars=True))
    assert shown.index("Pods") < shown.index("Progress") < shown.index("50%")
