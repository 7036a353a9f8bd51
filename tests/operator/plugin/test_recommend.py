"""`kubectl specdecode recommend`: what it draws of a status."""

import io

from rich.console import Console

from specdecode_operator.plugin.diagnosis import diagnose
from specdecode_operator.plugin.recommend_view import bar, draw_recommendation

REPORT = {
    "table": [{"from": 1, "candidateSteps": [0, 3]}, {"from": 4, "candidateSteps": [1]}],
    "tableHash": "abc",
    "expectedGain": "+12.0%",
    "gainLow": "+8.0%",
    "gainHigh": "+15.0%",
    "decodeSteps": 2000,
    "validityKey": "key",
    "madeAt": "2026-11-21T10:00:00Z",
    "patchHint": "kubectl patch sdd chat -n default --type merge -p '{}'",
    "batchBuckets": [
        {"batchSize": 4, "decodeSteps": 2000, "best": 1, "rates": {"1": "50.00", "3": "25.00"}}
    ],
}


def drawn(resource):
    out = io.StringIO()
    Console(file=out, width=100).print(draw_recommendation(resource))
    return out.getvalue()


def test_table_plot_and_patch_are_shown(example):
    text = drawn(example() | {"status": {"recommendation": REPORT}})
    assert "+12.0% tokens per second (+8.0% to +15.0%)" in text
    assert "kubectl patch sdd chat" in text
    deepest = next(line for line in text.splitlines() if " 3 draft steps" in line)
    best = next(line for line in text.splitlines() if " 1 draft steps" in line)
    assert best.count("█") == 2 * deepest.count("█") == 40
    assert "best" in best


def test_why_nothing_is_recommended_is_reported(example):
    assert "no engine has been observed yet" in drawn(example())
    assert "Manual measures nothing" in drawn(example(rollout={"mode": "Manual"}))
    held = {
        "type": "RecommendationReady",
        "reason": "WithinNoise",
        "message": "no draft steps are better",
    }
    assert "WithinNoise, no draft steps are better" in drawn(
        example() | {"status": {"conditions": [held]}}
    )


def test_a_bar_has_halves():
    assert bar(0.5, 3) == "█▌"
    assert bar(2.0, 2) == "██"


def test_the_description_contains_trials(example):
    from datetime import UTC, datetime

    status = {
        "activeTrial": "chat-0f",
        "lastTrial": {"name": "chat-0e", "verdict": "RolledBack", "reason": "Slower"},
        "effective": {"message": "the spec (0f) is being tried"},
    }
    facts = dict(diagnose(example() | {"status": status}, (), (), datetime.now(UTC)).facts)
    assert facts["Trial"] == "chat-0f"
    assert facts["Last trial"] == "chat-0e RolledBack (Slower)"
    assert "being tried" in facts["In force"]
