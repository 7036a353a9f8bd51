"""Drafts that do not fit their target, in whole engines: found, not used, probed, and lossless."""

import json

import pytest

from checks.detection.lives import measure as measure_lives
from checks.detection.served import (
    EXAMPLES,
    SOUND,
    draft_of,
    example_requests,
    random_requests,
    run_all,
    served_with,
)
from specdecode_engine.adaptive.draft_evidence import FirstPosition
from specdecode_engine.adaptive.draft_health import PROBE_INTERVAL, Fitness
from specdecode_engine.adaptive.policy import Decision, Reason
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.engine import EngineCore

DETECTED = ("random weights", "wrong d2t")
"""Other damage leaves this pair, which writes templates, an acceptance of about 5 % and more:
docs/troubleshooting.md names it for each."""


DRAFTS = Decision(3, 1, 0, Reason.STATIC)


def let_time_pass(core: EngineCore) -> None:
    """Make a probe due."""
    health = core.scheduler.drafting.health
    assert health is not None
    for _ in range(PROBE_INTERVAL):
        health.decide(core.scheduler.drafting.policy.table, 1, has_probe=False)
    health.account(1000.0, is_probe=False)
    assert health.is_probe_due


@pytest.mark.parametrize("damage", DETECTED)
def test_a_damaged_head_is_found_and_changes_no_text(damage, tmp_path):
    requests = example_requests(40, max_tokens=16)
    with served_with(SOUND, tmp_path / "sound", policy="static") as core:
        expected = run_all(core, requests)
        assert draft_of(core).fitness is Fitness.FIT
    with served_with(damage, tmp_path / "damaged", policy="static") as core:
        assert run_all(core, requests) == expected
        assert draft_of(core).is_unfit


@pytest.mark.parametrize("policy", ["static", "ema", "goodput"])
def test_an_unfit_draft_is_not_used_under_any_policy(policy, tmp_path, caplog):
    table = {"1": {"candidate_steps": [1, 2]}}
    with served_with("random weights", tmp_path / "x", policy=policy, table=table) as core:
        run_all(core, example_requests(40, max_tokens=16))
        snapshot = core.snapshot()
        assert draft_of(core).is_unfit
        assert {state.reason for state in snapshot.ranges} == {Reason.UNFIT}
        drafted = core.counters.decode.drafted_tokens
        run_all(core, example_requests(4, max_tokens=16))
        assert core.counters.decode.drafted_tokens == drafted
        assert "does not fit the target" in caplog.text
        assert caplog.text.count("decodes without it") == 1
        assert json.loads(json.dumps(snapshot.document()))["draft"]["fitness"] == "unfit"


def test_a_prompt_does_not_pass_an_unfit_draft_and_a_probe_does(tmp_path, monkeypatch):
    with served_with("random weights", tmp_path / "x", policy="static") as core:
        run_all(core, example_requests(40, max_tokens=16))
        drafter = core.context.drafter
        assert drafter is not None
        prefill, passed = drafter.prefill, list[int]()

        def note(spans, hidden):
            passed.append(len(spans))
            prefill(spans, hidden)

        monkeypatch.setattr(drafter, "prefill", note)
        run_all(core, example_requests(4, max_tokens=4))
        assert not passed
        let_time_pass(core)
        (request,) = example_requests(1, max_tokens=32)
        drafted = core.counters.decode.drafted_tokens
        run_all(core, [request])
        assert passed
        assert core.counters.decode.drafted_tokens > drafted
        assert draft_of(core).probes == 1


@pytest.mark.parametrize("algorithm", ["EAGLE3", "STANDALONE"])
def test_probes_find_that_a_sound_draft_fits_although_their_prompts_are_cached(algorithm, tmp_path):
    """The draft has seen none of the cached prompts, nor the steps since it was found unfit."""
    draft = {"algorithm": algorithm}
    if algorithm == "STANDALONE":
        draft["draft_path"] = str(EXAMPLES / "draft")
    requests = example_requests(8, max_tokens=24)
    with served_with(SOUND, tmp_path / "x", policy="static", **draft) as core:
        expected = run_all(core, requests)
        health = core.scheduler.drafting.health
        assert health is not None
        core.judge_draft(DRAFTS, FirstPosition(proposed=9000, accepted=0, requests=24), 0.01)
        assert run_all(core, requests) == expected
        assert draft_of(core).is_unfit
        for _ in range(4):
            if draft_of(core).is_unfit:
                let_time_pass(core)
                assert run_all(core, requests) == expected
        assert not draft_of(core).is_unfit
        assert draft_of(core).probes > 0


@pytest.mark.parametrize(
    ("requests", "temperature"),
    [(example_requests, 1.5), (example_requests, 1.0), (random_requests, 0.0)],
)
def test_a_sound_head_is_not_called_unfit(requests, temperature, tmp_path):
    with served_with(SOUND, tmp_path / "x", policy="static") as core:
        run_all(core, requests(60, max_tokens=16, temperature=temperature))
        draft = draft_of(core)
        assert not draft.is_unfit
        assert draft.evidence.proposed >= 200 or temperature > 1


def test_requests_that_change_the_target_s_distribution_are_no_evidence(tmp_path):
    changed = [
        SamplingParams(1, 8, 0.0, logit_bias={5: 3.0}),
        SamplingParams(1, 8, 0.0, repetition_penalty=1.2),
        SamplingParams(1, 8, 0.0, presence_penalty=0.5),
        SamplingParams(1, 8, 0.0, bad_words=((7,),)),
        SamplingParams(1, 8, 0.0, allowed_token_ids=frozenset(range(10, 200))),
        SamplingParams(1, 8, 1.2),
    ]
    requests = [
        Request(str(number), (3, 4, 5, 6), sampling) for number, sampling in enumerate(changed)
    ]
    with served_with(SOUND, tmp_path / "x", policy="static") as core:
        run_all(core, requests)
        assert draft_of(core).evidence.proposed == 0
        run_all(core, [Request("free", (3, 4, 5, 6), SamplingParams(1, 8, 1.0))])
        assert draft_of(core).evidence.proposed > 0


def test_an_engine_s_lives_on_requests_that_are_hard_to_draft_raise_no_alarm():
    lives = measure_lives(1)
    short = lives.pop("short random requests")
    assert (short["alarms"], short["judged"]) == (0, 1)
    assert 0.05 < short["acceptance"] < 0.4
    nothing = {"lives": 1, "alarms": 0, "judged": 0, "acceptance": 0.0}
    assert lives == {"temperature 1.5": nothing, "JSON grammars": nothing}
