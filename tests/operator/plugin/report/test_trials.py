"""The trials of a page: their intervals over time, and what is read when the evidence is odd."""

import copy
import random

import pytest

from specdecode_operator.plugin.report.gathered import Gathered
from specdecode_operator.plugin.report.trial_course import MAX_POINTS, course, fraction
from specdecode_operator.plugin.report.trials_section import trials_section
from specdecode_operator.trial.record.verdict_record import read

from .conftest import HOSTILE


@pytest.fixture
def section(example, now):
    return lambda *trials: trials_section(Gathered(example(), now, trials))


def test_the_interval_narrows_around_the_gain_as_pairs_are_added(turns):
    found = course({"evidence": turns(ratio=0.9, pairs=40)})
    assert found.unit == "pairs of turns"
    assert [each.count for each in found.points] == list(range(1, 41, 3))
    assert all(each.low <= each.gain <= each.high for each in found.points)
    widths = [each.high - each.low for each in found.points]
    assert widths[-1] < 0.2 * widths[2]
    assert found.points[-1].gain == pytest.approx(0.1, abs=0.02)
    assert found.points[-1].low > 0.0


def test_the_last_interval_is_the_one_that_the_verdict_was_given_by(turns):
    evidence = turns(pairs=37)
    gain = read(evidence).judge().gain
    assert gain is not None
    last = course({"evidence": evidence}).points[-1]
    assert (last.gain, last.low, last.high) == (
        gain.estimate, gain.lower, gain.upper
    )  # fmt: skip


def test_the_longest_trial_has_a_bounded_number_of_points(turns):
    found = course({"evidence": turns(pairs=128, strata=24)})
    assert len(found.points) <= MAX_POINTS
    assert found.points[-1].count == 128
    assert len(found.strata) == 24


def test_a_trial_on_separate_pods_has_points_at_its_windows(separate_pods):
    found = course({"evidence": separate_pods(ratio=0.9)})
    assert found.unit == "time windows"
    assert found.points[-1].count == 12
    assert found.points[-1].gain == pytest.approx(0.1, abs=0.02)


def test_a_running_trial_has_the_interval_of_its_status(section, trial):
    status = {"phase": "Measuring", "pairs": 9, "measuredSeconds": 540}
    running = trial(interval={"gain": "0.0400", "low": "-0.0100", "high": "0.0900"}, **status)
    (part,) = section(running).parts
    assert part.figures[0].table.rows == (("9", "+4.0%", "-1.0%", "+9.0%"),)
    assert ("Measured", "9m0s") in part.facts
    assert part.missing == ()


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        ({}, "No gain is known."),
        ({"interval": {"gain": "NaN", "low": "0", "high": "1"}}, "No gain is known."),
        ({"interval": {"gain": "0.1"}}, "No gain is known."),
        ({"evidence": {"guard": 1}}, "The evidence cannot be read: evidence must be an object"),
        ({"evidence": "{"}, "The evidence cannot be read: evidence "),
    ],
)
def test_a_trial_without_a_readable_gain_states_why(section, trial, status, problem):
    (part,) = section(trial(**status)).parts
    assert part.missing[0].startswith(problem)
    assert all(each.plot is None for each in part.figures)


def test_evidence_without_pairs_falls_back_to_the_status(turns):
    found = course(
        {"evidence": turns(pairs=0), "interval": {"gain": "1%", "low": "0%", "high": "2%"}}
    )
    assert [each.gain for each in found.points] == [0.01]
    assert found.problem == "No pair and no window was compared."


def test_trials_are_listed_with_the_newest_first(section, trial):
    old, new = trial("chat-old"), trial("chat-new")
    new["metadata"]["creationTimestamp"] = "2026-11-21T11:00:00Z"
    assert [each.title for each in section(old, new).parts] == ["Trial chat-new", "Trial chat-old"]


def test_a_trial_shows_its_arms_its_candidate_and_its_result(section, trial, turns):
    tried = trial(
        evidence=turns(), verdict="Promoted", reason="Faster", message="decoding is 10 % faster",
        baseline={"configHash": "v1-a", "requests": 2000, "tokens": 1_000_000, "failed": 0},
        candidate={"configHash": "v1-b", "requests": 2100, "acceptLength": "2.91", "failed": 1},
    )  # fmt: skip
    (part,) = section(tried).parts
    assert ("Result", "Promoted (Faster)") in part.facts
    assert "pageSize: 32" in part.code
    assert part.figures[1].table.rows[:3] == (
        ("Requests", "2,000", "2,100"), ("Tokens", "1,000,000", "–"), ("Accept length", "–", "2.91")
    )  # fmt: skip
    assert part.figures[2].table.rows[0][0] == "batch 1, greedy, free, short, l0"


def test_a_share_may_be_a_fraction_or_a_percentage():
    assert fraction("+3.5%") == pytest.approx(0.035)
    assert fraction("0.035") == 0.035
    assert fraction(None) is None
    assert fraction("NaN%") is None


def leaves(value, path=()):
    """Paths of all values that are neither lists nor objects."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for name, each in pairs:
        if isinstance(each, dict | list):
            yield from leaves(each, (*path, name))
        else:
            yield (*path, name)


@pytest.mark.parametrize("wrong", [0, -1, 2**53, 1e300, "x", None, HOSTILE])
def test_evidence_with_any_wrong_value_gives_a_course_or_a_problem(turns, separate_pods, wrong):
    draw = random.Random(17)
    for evidence in (turns(pairs=3, strata=1), separate_pods(windows=3)):
        for path in draw.sample(list(leaves(evidence)), 25):
            changed = copy.deepcopy(evidence)
            place = changed
            for name in path[:-1]:
                place = place[name]
            place[path[-1]] = wrong
            found = course({"evidence": changed})
            assert found.points or found.problem, path
