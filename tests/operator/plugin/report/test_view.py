"""The page of `kubectl specdecode report`: what it contains of a resource, and what is missing."""

import math

import pytest

from specdecode_operator.plugin.report.gathered import Gathered
from specdecode_operator.plugin.report.history import WorkHistory, from_activity
from specdecode_operator.plugin.report.view import report_page

from .conftest import HOSTILE

SECTIONS = {
    "configuration", "steps", "positions", "recommendation", "throughput", "trials", "conditions"
}  # fmt: skip


@pytest.fixture
def section(now):
    """One section of the page of a resource."""

    def make(name, resource, **given):
        given.setdefault("history", from_activity(resource.get("status") or {}))
        found = report_page(Gathered(resource, now, **given))
        return next(each for each in found.sections if each.id == name)

    return make


def rows(part, index=0):
    return part.figures[index].table.rows


def test_a_resource_without_a_status_has_every_section_with_what_is_missing(example, page):
    found = page(example())
    assert {each["id"] for each in found.all("section")} == SECTIONS
    assert "Missing: Nothing is recorded of draft steps. The operator records it" in found.text
    assert "No engine has counted accepted draft positions." in found.text
    assert "There is no recommendation: no engine has been observed yet." in found.text
    assert "`kubectl specdecode trial start NAME -p PATCH` creates one" in found.text
    assert "No operator has reconciled the resource yet." in found.text
    assert not found.all("svg")


def test_a_missing_series_of_prometheus_names_the_labels_and_the_option(example, section):
    (text,) = section("steps", example(), has_prometheus=True).missing
    assert "enginePodMonitor.enabled" in text
    assert "--since" in text


def test_what_could_not_be_read_is_stated_in_its_section(example, section):
    problems = {
        "trials": "The trials cannot be read: forbidden.",
        "revisions": "The revisions cannot be read: forbidden.",
        "engines": "The engines cannot be read: forbidden.",
    }
    for name, what in (
        ("trials", "trials"),
        ("configuration", "revisions"),
        ("positions", "engines"),
    ):
        assert problems[what] in section(name, example(), problems=problems).missing


def test_each_plot_has_a_title_a_description_and_a_table(
    example, page, activity, advice, totals, trial, turns
):
    status = {"activity": activity(), "recommendation": advice}
    found = page(example() | {"status": status}, totals=totals, trials=(trial(evidence=turns()),))
    plots = found.all("svg")
    assert len(plots) == 8
    titles = {each["id"] for each in found.all("title") if "id" in each}
    descriptions = {each["id"] for each in found.all("desc")}
    for each in plots:
        title, description = each["aria-labelledby"].split()
        assert title in titles
        assert description in descriptions
    identifiers = [pairs["id"] for _, pairs in found.tags if "id" in pairs]
    assert len(identifiers) == len(set(identifiers))
    assert len(found.all("figure")) == len(found.all("table"))


def test_the_page_refers_to_no_other_file_and_contains_no_script(
    example, page, activity, advice, totals, trial, turns
):
    status = {"activity": activity(), "recommendation": advice}
    found = page(example() | {"status": status}, totals=totals, trials=(trial(evidence=turns()),))
    names = {name for name, _ in found.tags}
    assert not names & {"script", "link", "img", "iframe", "object", "embed", "image", "use"}
    targets = [pairs["href"] for pairs in found.all("a")]
    assert targets
    assert all(each.startswith("#") for each in targets)
    style = found.texts[next(at for at, each in enumerate(found.texts) if "color-scheme" in each)]
    assert "url(" not in style
    assert "@import" not in style
    policy = [each for each in found.all("meta") if "http-equiv" in each]
    assert policy[0]["content"] == "default-src 'none'; style-src 'unsafe-inline'"


def poisoned(value, depth=0):
    """A document in which every text is hostile, but for those that decide on what is drawn."""
    kept = {"type", "until", "creationTimestamp", "expectedGain", "deployment"}
    if isinstance(value, dict):
        return {
            name: each if name in kept else poisoned(each, depth + 1)
            for name, each in value.items()
        }
    if isinstance(value, list):
        return [poisoned(each, depth + 1) for each in value]
    return HOSTILE if isinstance(value, str) else value


def test_text_of_the_cluster_is_never_markup(
    example, page, activity, advice, totals, trial, turns, now
):
    condition = {"type": "Ready", "status": "True", "reason": "r", "message": "m"}
    status = {
        "activity": activity(),
        "recommendation": advice,
        "conditions": [condition],
        "effective": {"reason": "Promoted", "message": "m", "configHash": "h", "revision": "r"},
        "exploration": {"trialsToday": 1, "candidateShare": "1%", "notBefore": "t"},
        "measured": {"acceptLength": "2", "tokensPerSecond": "5"},
        "address": {"url": "javascript:alert(1)"},
    }
    resource = example() | {"status": status}
    evidence = turns()
    evidence["evidence"]["strata"][0][4] = HOSTILE
    arm = {"configHash": "h", "requests": 5, "secondsPerToken": "1"}
    tried = trial(message="m", verdict="v", reason="r", baseline=arm, candidate=arm)
    hostile = poisoned(tried)
    hostile["status"]["evidence"] = evidence
    found = page(
        poisoned(resource), totals=totals, trials=(hostile,), problems={"engines": HOSTILE}
    )
    assert not found.all("script")
    assert not found.all("img")
    assert found.text.count("<script>alert('x')</script>") > 20
    assert sum("onerror" in pairs for _, pairs in found.tags) == 0


def test_the_configuration_in_force_differs_from_the_spec_with_the_patch_that_writes_it(
    example, section
):
    table = [{"from": 1, "candidateSteps": [0, 3]}, {"from": 8, "candidateSteps": [1]}]
    speculation = example()["spec"]["speculation"] | {"adaptive": {"batchSizes": table}}
    accepted = example()["spec"] | {"speculation": speculation, "pageSize": 32}
    revision = {"metadata": {"name": "chat-1"}, "revision": 2, "data": {"spec": accepted}}
    effective = {
        "revision": "chat-1", "reason": "Promoted", "configHash": "v1-x",
        "message": "a trial has put another configuration in force",
    }  # fmt: skip
    part = section(
        "configuration", example() | {"status": {"effective": effective}}, revisions=(revision,)
    )
    assert ("Page size", "32") in part.facts
    assert ("Revision", "chat-1 (number 2)") in part.facts
    assert part.text[0] == "A trial put it in force in place of the spec."
    assert part.text[1] == "A trial has put another configuration in force."
    assert "pageSize: 32" in part.code
    assert rows(part) == (("1", "0, 3", ""), ("8", "1", ""))
    assert part.missing == ()


def test_a_lost_revision_is_stated_and_the_spec_is_shown(example, section):
    effective = {"revision": "chat-gone", "reason": "Promoted", "configHash": "v1-x"}
    part = section("configuration", example() | {"status": {"effective": effective}})
    assert "ControllerRevision chat-gone, which is in force, does not exist" in part.missing[0]
    assert part.facts


def test_mean_draft_steps_come_from_the_history_else_from_running_engines(
    example, section, activity, totals
):
    resource = example() | {"status": {"activity": activity(buckets=(1, 256))}}
    part = section("steps", resource, totals=totals)
    assert part.text == ("Source: status.activity.",)
    assert [each[0] for each in rows(part)] == ["1", "256+"]
    live = section("steps", example(), totals=totals)
    assert rows(live) == (("1", "2.5"), ("8–15", "0.0"))
    assert live.text == ("Source: counters of 2 of 2 engines since their start.",)


def test_the_accept_length_adds_up_over_positions(example, section, totals):
    part = section("positions", example(), totals=totals)
    assert [each[4] for each in rows(part)] == ["1.50", "1.75", "1.88", "1.94"]
    assert [each[3] for each in rows(part)] == ["50%"] * 4
    assert rows(part, 1)[1] == ("8–15", "50%", "50%", "50%", "50%")


def test_the_recommended_draft_steps_are_marked_in_word_and_plot(example, section, advice):
    part = section("recommendation", example() | {"status": {"recommendation": advice}})
    assert rows(part, 1) == (("1", "50.0", "recommended"), ("3", "25.0", ""))
    assert rows(part, 2) == (("1", "–", ""), ("2", "30.0", ""), ("10", "20.0", ""))
    plot = part.figures[1].plot
    assert [each.style for each in plot.boxes] == ["bar marked", "bar"]
    assert "50.0 ◀ best" in [each.text for each in plot.texts]
    assert "What is in force should stay." in part.figures[2].plot.description
    assert part.code == advice["patchHint"]


@pytest.mark.parametrize("value", ["NaN", "", "inf", "-", "1e999"])
def test_a_rate_that_is_no_finite_number_has_no_bar(example, section, advice, value):
    advice["batchBuckets"] = [{"batchSize": 1, "decodeSteps": 1, "best": 0, "rates": {"0": value}}]
    part = section("recommendation", example() | {"status": {"recommendation": advice}})
    assert rows(part, 1) == (("0", "–", "recommended"),)
    assert part.figures[1].plot.boxes == ()


@pytest.mark.parametrize("count", [1, 2, 48])
def test_a_history_of_any_length_is_drawn_with_finite_coordinates(example, page, activity, count):
    found = page(example() | {"status": {"activity": activity(count)}})
    for name in ("x", "y", "width", "height", "cx", "cy", "d"):
        for _, pairs in found.tags:
            assert "nan" not in (pairs.get(name) or "")
            assert "inf" not in (pairs.get(name) or "")
    assert len(found.all("svg")) == 4


def test_a_history_without_any_work_is_drawn(example, page):
    empty = {"until": "2026-11-21T12:00:00Z", "tokensPerSecond": [0], "acceptLengthHundredths": [0]}
    found = page(example() | {"status": {"activity": empty}})
    assert "No value is known." in found.text
    assert "Nothing is recorded of draft steps." in found.text


@pytest.mark.parametrize(
    "bad",
    [
        {}, {"until": "yesterday", "tokensPerSecond": [1], "acceptLengthHundredths": [1]},
        {"until": "2026-11-21T12:00:00Z", "tokensPerSecond": [], "acceptLengthHundredths": []},
        {"until": "2026-11-21T12:00:00Z", "tokensPerSecond": ["x"], "acceptLengthHundredths": [1]},
    ],
)  # fmt: skip
def test_an_activity_of_another_form_is_missing_history(bad):
    assert from_activity({"activity": bad}) is None


def test_columns_of_unequal_length_end_together():
    history = from_activity(
        {
            "activity": {
                "until": "2026-11-21T12:00:00Z",
                "tokensPerSecond": [1, 2, 3],
                "acceptLengthHundredths": [200, 300, 400],
                "draftSteps": [{"from": 1, "tenths": [30]}],
            }
        }
    )
    assert history is not None
    assert history.draft_steps[1] == (None, None, 3.0)


def test_values_that_are_not_finite_leave_gaps(example, section, now):
    history = WorkHistory("Prometheus", (now,) * 4, (1.0, math.nan, None, 4.0), (None,) * 4)
    part = section("throughput", example(), history=history)
    assert [each.d for each in part.figures[0].plot.paths if each.style == "line"] == []
    assert len(part.figures[0].plot.dots) == 2
