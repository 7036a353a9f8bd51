"""The choice between a draft model and NGRAM: pure, by what both have shown."""

import random

import pytest

from specdecode_engine.adaptive.draft_source import (
    PROBE_INTERVAL,
    DraftSources,
    RequestTrials,
    Trials,
    expected_accepted,
)

DEPTH = 7


def draw(rng: random.Random, rate: float, depth: int) -> Trials:
    accepted = 0
    while accepted < depth and rng.random() < rate:
        accepted += 1
    return Trials.of(accepted, depth)


def run_request(
    sources: DraftSources, draft_rate: float, ngram_rate: float, steps: int, seed: int = 0
) -> float:
    """Decode a request whose sources have these rates; return how often NGRAM was preferred."""
    rng, own, preferred = random.Random(seed), RequestTrials(), 0
    for _ in range(steps):
        is_ngram = sources.prefers_ngram(own, DEPTH, DEPTH)
        preferred += is_ngram
        draft = None if is_ngram else draw(rng, draft_rate, DEPTH)
        sources.learn(own, draft, draw(rng, ngram_rate, DEPTH))
    return preferred / steps


def test_expected_accepted_tokens_are_the_sum_of_the_chances_of_each_position() -> None:
    assert expected_accepted(0.5, 3) == pytest.approx(0.5 + 0.25 + 0.125)
    assert expected_accepted(1.0, 4) == 4
    assert expected_accepted(0.9, 0) == 0


def test_trials_end_at_the_first_position_that_is_not_accepted() -> None:
    assert Trials.of(accepted=2, depth=5) == Trials(tried=3, accepted=2)
    assert Trials.of(accepted=5, depth=5) == Trials(tried=5, accepted=5)
    assert Trials.of(accepted=0, depth=0) == Trials(tried=0, accepted=0)


@pytest.mark.parametrize("seed", range(5))
def test_the_source_with_more_accepted_tokens_serves_nearly_all_steps(seed: int) -> None:
    assert run_request(DraftSources(), 0.6, 0.95, 400, seed) > 0.9
    assert run_request(DraftSources(), 0.8, 0.3, 400, seed) < 0.05


def test_without_evidence_and_without_a_match_the_draft_model_drafts() -> None:
    sources = DraftSources()
    assert not sources.prefers_ngram(RequestTrials(), DEPTH, DEPTH)
    run_request(sources, 0.1, 0.9, 200)
    assert sources.prefers_ngram(RequestTrials(), DEPTH, DEPTH)
    assert not sources.prefers_ngram(RequestTrials(), DEPTH, 0)


def test_a_short_match_must_be_better_than_a_deep_draft() -> None:
    sources, rng = DraftSources(), random.Random(1)
    for _ in range(100):
        sources.learn(RequestTrials(), draw(rng, 0.7, DEPTH), draw(rng, 0.9, DEPTH))
    assert not sources.prefers_ngram(RequestTrials(), DEPTH, 1)
    assert sources.prefers_ngram(RequestTrials(), 1, DEPTH)


def test_a_request_is_judged_by_itself_and_begins_as_the_others() -> None:
    sources, copying, rambling = DraftSources(), RequestTrials(), RequestTrials()
    rng = random.Random(1)
    for _ in range(100):
        sources.learn(copying, None, draw(rng, 0.97, DEPTH))
        sources.learn(rambling, draw(rng, 0.7, DEPTH), draw(rng, 0.05, DEPTH))
    copying.steps_without_draft = 0
    assert sources.prefers_ngram(copying, DEPTH, DEPTH)
    assert not sources.prefers_ngram(rambling, DEPTH, DEPTH)


def test_what_a_request_showed_fades() -> None:
    sources, own = DraftSources(), RequestTrials()
    run_request(sources, 0.8, 0.5, 200)
    for _ in range(20):
        sources.learn(own, None, Trials.of(DEPTH, DEPTH))
    own.steps_without_draft = 0
    assert sources.prefers_ngram(own, DEPTH, DEPTH)
    for _ in range(8):
        sources.learn(own, Trials.of(DEPTH, DEPTH), Trials.of(0, DEPTH))
    assert not sources.prefers_ngram(own, DEPTH, DEPTH)


def test_a_request_returns_to_the_draft_model_now_and_then() -> None:
    sources, own, drafted = DraftSources(), RequestTrials(), []
    for step in range(3 * PROBE_INTERVAL):
        is_ngram = sources.prefers_ngram(own, DEPTH, DEPTH)
        if not is_ngram:
            drafted.append(step)
        sources.learn(own, None if is_ngram else Trials.of(0, DEPTH), Trials.of(DEPTH, DEPTH))
    late = [step for step in drafted if step >= PROBE_INTERVAL // 2]
    assert 2 <= len(late) <= 3


def test_an_exchanged_draft_starts_without_what_the_old_one_showed() -> None:
    sources = DraftSources()
    run_request(sources, 0.95, 0.6, 200)
    assert not sources.prefers_ngram(RequestTrials(), DEPTH, DEPTH)
    sources.forget_draft()
    assert sources.prefers_ngram(RequestTrials(), DEPTH, DEPTH)
