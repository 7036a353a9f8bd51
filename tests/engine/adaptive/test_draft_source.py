"""The choice between a draft model and NGRAM: pure, by what both have shown and cost."""

import random

import pytest

from specdecode_engine.adaptive.cost import CostPoint
from specdecode_engine.adaptive.draft_source import (
    LEAST_DRAFT_STEPS,
    PROBE_INTERVAL,
    DraftSources,
    RequestDrafts,
    RequestTrials,
    TimedStep,
    Trials,
    expected_accepted,
)

DEPTH = 7


def prefers_ngram(
    sources: DraftSources, own: RequestTrials, draft_depth: int, ngram_depth: int
) -> bool:
    """Whether a request that decodes alone verifies what NGRAM found."""
    alone = RequestDrafts(own, draft_depth, ngram_depth, ngram_depth)
    (by_model,) = sources.choose([alone], draft_depth, kv_tokens=100)
    return not by_model


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
        is_ngram = prefers_ngram(sources, own, DEPTH, DEPTH)
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
    assert not prefers_ngram(sources, RequestTrials(), DEPTH, DEPTH)
    run_request(sources, 0.1, 0.9, 200)
    assert prefers_ngram(sources, RequestTrials(), DEPTH, DEPTH)
    assert not prefers_ngram(sources, RequestTrials(), DEPTH, 0)


def test_a_short_match_must_be_better_than_a_deep_draft() -> None:
    sources, rng = DraftSources(), random.Random(1)
    for _ in range(100):
        sources.learn(RequestTrials(), draw(rng, 0.7, DEPTH), draw(rng, 0.9, DEPTH))
    assert not prefers_ngram(sources, RequestTrials(), DEPTH, 1)
    assert prefers_ngram(sources, RequestTrials(), 1, DEPTH)


def test_a_request_is_judged_by_itself_and_begins_as_the_others() -> None:
    sources, copying, rambling = DraftSources(), RequestTrials(), RequestTrials()
    rng = random.Random(1)
    for _ in range(100):
        sources.learn(copying, None, draw(rng, 0.97, DEPTH))
        sources.learn(rambling, draw(rng, 0.7, DEPTH), draw(rng, 0.05, DEPTH))
    copying.steps_without_draft = 0
    assert prefers_ngram(sources, copying, DEPTH, DEPTH)
    assert not prefers_ngram(sources, rambling, DEPTH, DEPTH)


def test_what_a_request_showed_fades() -> None:
    sources, own = DraftSources(), RequestTrials()
    run_request(sources, 0.8, 0.5, 200)
    for _ in range(20):
        sources.learn(own, None, Trials.of(DEPTH, DEPTH))
    own.steps_without_draft = 0
    assert prefers_ngram(sources, own, DEPTH, DEPTH)
    for _ in range(8):
        sources.learn(own, Trials.of(DEPTH, DEPTH), Trials.of(0, DEPTH))
    assert not prefers_ngram(sources, own, DEPTH, DEPTH)


def test_a_request_returns_to_the_draft_model_now_and_then() -> None:
    sources, own, drafted = DraftSources(), RequestTrials(), []
    for step in range(3 * PROBE_INTERVAL):
        is_ngram = prefers_ngram(sources, own, DEPTH, DEPTH)
        if not is_ngram:
            drafted.append(step)
        sources.learn(own, None if is_ngram else Trials.of(0, DEPTH), Trials.of(DEPTH, DEPTH))
    late = [step for step in drafted if step >= PROBE_INTERVAL // 2]
    assert 2 <= len(late) <= 3


def test_an_exchanged_draft_starts_without_what_the_old_one_showed() -> None:
    sources = DraftSources()
    run_request(sources, 0.1, 0.6, 200)
    assert prefers_ngram(sources, RequestTrials(), DEPTH, DEPTH)
    sources.forget_draft()
    assert not prefers_ngram(sources, RequestTrials(), DEPTH, DEPTH)


def timed(with_draft_s: float, without_s: float, batch_size: int = 1) -> DraftSources:
    """Return sources whose steps take so long; the draft model is at 0.6, NGRAM at 0.5."""
    sources, rng = DraftSources(), random.Random(1)
    for _ in range(400):
        sources.learn(RequestTrials(), draw(rng, 0.6, DEPTH), draw(rng, 0.5, DEPTH))
    for _ in range(4):
        without = TimedStep(batch_size, DEPTH, 100, without_s, tokens=2.0)
        sources.learn_cost(without, has_draft=False)
        with_draft = TimedStep(batch_size, DEPTH, 100, with_draft_s, tokens=2.5)
        sources.learn_cost(with_draft, has_draft=True)
    return sources


def test_a_slightly_better_draft_model_is_left_out_where_it_takes_more_time_than_it_saves() -> None:
    assert not prefers_ngram(timed(0.010, 0.0099), RequestTrials(), DEPTH, DEPTH)
    assert prefers_ngram(timed(0.015, 0.0099), RequestTrials(), DEPTH, DEPTH)


def test_the_draft_model_drafts_for_a_batch_as_a_whole() -> None:
    """One request without a match pays for it alone, or joins others that need it."""
    lost = RequestDrafts(RequestTrials(), DEPTH, 0, 0)
    copying = RequestTrials()
    for _ in range(40):
        copying.ngram.add(Trials.of(DEPTH, DEPTH), 1.0)
    matched = RequestDrafts(copying, DEPTH, DEPTH, DEPTH)
    expensive, cheap = timed(0.015, 0.010, 4), timed(0.0096, 0.010, 4)
    assert expensive.choose([lost, matched, matched, matched], DEPTH, 400) == (False,) * 4
    assert cheap.choose([lost, matched, matched, matched], DEPTH, 400) == (True, *(False,) * 3)


def test_time_is_worth_what_the_latest_steps_made_of_it() -> None:
    """A step without a match is plain decoding where NGRAM gives many tokens otherwise."""
    sources = timed(0.015, 0.010)
    assert not prefers_ngram(sources, RequestTrials(), DEPTH, 0)
    copied, lost = (TimedStep(1, DEPTH, 100, 0.010, tokens) for tokens in (7.0, 1.0))
    for _ in range(30):
        sources.learn_cost(copied, has_draft=False)
    assert prefers_ngram(sources, RequestTrials(), DEPTH, 0)
    for _ in range(30):
        sources.learn_cost(lost, has_draft=False)
    assert not prefers_ngram(sources, RequestTrials(), DEPTH, 0)


def test_until_the_draft_model_was_timed_tokens_alone_decide() -> None:
    sources, rng = DraftSources(), random.Random(1)
    for _ in range(100):
        sources.learn(RequestTrials(), draw(rng, 0.6, DEPTH), draw(rng, 0.5, DEPTH))
    with_draft = TimedStep(1, DEPTH, 100, 1.0, tokens=2.5)
    sources.learn_cost(TimedStep(1, DEPTH, 100, 1e-6, tokens=2.0), has_draft=False)
    for _ in range(LEAST_DRAFT_STEPS):
        assert not prefers_ngram(sources, RequestTrials(), DEPTH, DEPTH)
        sources.learn_cost(with_draft, has_draft=True)
    assert prefers_ngram(sources, RequestTrials(), DEPTH, DEPTH)


def test_costs_at_start_are_those_of_steps_with_the_draft_model() -> None:
    sources, rng = DraftSources(), random.Random(1)
    for _ in range(400):
        sources.learn(RequestTrials(), draw(rng, 0.5, DEPTH), draw(rng, 0.5, DEPTH))
    sources.start_from([CostPoint(1, 0, 100, 0.010), CostPoint(1, DEPTH, 100, 0.0135)])
    sources.learn_cost(TimedStep(1, DEPTH, 100, 0.0135, tokens=1.5), has_draft=True)
    # Equal rates: NGRAM's tokens come in less time.
    assert prefers_ngram(sources, RequestTrials(), DEPTH, DEPTH)
    assert not prefers_ngram(sources, RequestTrials(), DEPTH, 1)


def test_requests_return_to_the_draft_model_together() -> None:
    sources = timed(0.030, 0.001, 2)
    due, soon, fresh = RequestTrials(), RequestTrials(), RequestTrials()
    due.steps_without_draft = PROBE_INTERVAL
    soon.steps_without_draft = PROBE_INTERVAL - 1
    for own in (due, soon, fresh):
        own.ngram.add(Trials(40, 40), 1.0)

    def choose(*several: RequestTrials) -> tuple[bool, ...]:
        return sources.choose(
            [RequestDrafts(own, DEPTH, DEPTH, DEPTH) for own in several], DEPTH, 9
        )

    assert choose(due, soon, fresh) == (True, True, False)
    assert choose(soon, fresh) == (False, False)
