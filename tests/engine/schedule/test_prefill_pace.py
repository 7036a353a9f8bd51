"""Sizes of prompt chunks by what chunks have cost, alone and in a whole engine."""

import random
from collections.abc import Callable

import pytest
import torch

from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.engine import EngineCore
from specdecode_engine.schedule.prefill_pace import (
    LONG_INTERVAL,
    MIN_TOKENS,
    RETRY_INTERVAL,
    PrefillPace,
)
from specdecode_engine.startup.build import build_core
from specdecode_engine.steps.launch import Launcher
from specdecode_engine.steps.timing import Stopwatch
from tests.engine.whole_engine import boot_of

MOST, DELAY = 2048, 1.5
STEP_S = 1.0


def settled(
    fixed_s: float, slope_s: float, *, is_shared: bool, seed: int = 1, delay_steps: float = DELAY
) -> PrefillPace:
    """A pace after 200 chunks of such a cost next to a request, and as many ends of prompts."""
    draw = random.Random(seed)
    pace = PrefillPace(MOST, delay_steps)
    pace.observe_step(1, STEP_S)
    for _ in range(200):
        for tokens in (pace.tokens(1), draw.randint(1, MOST)):
            seconds = (fixed_s + slope_s * tokens) * draw.uniform(0.97, 1.03)
            pace.observe_chunk(tokens, seconds + STEP_S * is_shared, int(is_shared))
    return pace


def test_nothing_bounds_prompts_alone_and_before_anything_was_measured() -> None:
    pace = PrefillPace(MOST, DELAY)
    assert pace.tokens(1) == pace.tokens(0) == MOST
    pace.observe_chunk(512, 50.0, 0)
    assert pace.tokens(1) == MOST  # the decode step is unknown
    pace.observe_chunk(512, 50.0, 3)  # and so is its part of this forward
    pace.observe_step(1, STEP_S)
    assert pace.tokens(1) < MOST
    assert pace.tokens(0) == MOST


def test_without_a_bound_all_chunks_are_whole() -> None:
    pace = PrefillPace(MOST, 0.0)
    pace.observe_step(1, STEP_S)
    pace.observe_chunk(512, 50.0, 0)
    assert pace.tokens(1) == MOST


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize(
    ("fixed_s", "slope_s"), [(0.0, 0.01), (0.0, 0.05), (0.5, 0.002), (1.0, 0.001), (0.2, 0.0001)]
)
def test_a_chunk_adds_at_most_the_bound(fixed_s: float, slope_s: float, is_shared: bool) -> None:
    tokens = settled(fixed_s, slope_s, is_shared=is_shared).tokens(1)
    added_s = fixed_s + slope_s * tokens
    assert added_s <= 1.1 * DELAY * STEP_S
    assert added_s >= 0.85 * DELAY * STEP_S or tokens == MOST


def test_a_chunk_after_a_long_context_adds_at_most_the_bound_too() -> None:
    draw, pace = random.Random(3), PrefillPace(MOST, DELAY)
    pace.observe_step(1, STEP_S)
    found: list[tuple[int, float]] = []
    for _ in range(100):
        for context in (0, draw.choice((8_000, 12_000)), draw.randint(0, 40_000)):
            tokens = min(pace.tokens(1, context=context), draw.randint(1, MOST))
            added_s = 0.05 + tokens * (0.002 + 1e-6 * context)
            pace.observe_chunk(tokens, STEP_S + added_s, 1, context=context)
            found.append((context, added_s / STEP_S))
    later = [added for _, added in found[100:]]
    assert max(later) < 1.5 * DELAY  # contexts of one octave differ by a factor of two
    for context in (0, 10_000, 39_000):
        tokens = pace.tokens(1, context=context)
        added_s = 0.05 + tokens * (0.002 + 1e-6 * context)
        assert 0.6 * DELAY < added_s < 1.5 * DELAY


def serve_within(
    pace: PrefillPace, room_s: float, missing: int, added_s: Callable[[int], float]
) -> list[int]:
    """Compute prompts next to one request whose steps are limited; return the tokens of steps."""
    chunks = list[int]()
    while missing:
        tokens = min(pace.tokens(1, room_s, missing), missing)
        chunks.append(tokens)
        if tokens:
            pace.observe_chunk(tokens, STEP_S + added_s(tokens), 1)
        else:
            pace.observe_step(1, STEP_S)
        missing -= tokens
    return chunks


def blocks_s(tokens: int) -> float:
    """Blocks of 8 rows take half a step each, after a fixed part."""
    return 0.1 + 0.5 * (-(-tokens // 8) - 1)


@pytest.mark.parametrize("delay_steps", [DELAY, 0.0])
def test_chunks_grow_to_the_largest_that_fits_the_room(delay_steps: float) -> None:
    pace = PrefillPace(MOST, delay_steps)
    pace.observe_step(1, STEP_S)
    chunks = serve_within(pace, 0.3, 800, blocks_s)
    assert chunks[:5] == [1, 2, 4, 8, 16], "each size is measured once"
    assert set(chunks[5:-1]) == {8}
    assert pace.added_s(8, 1) == pytest.approx(0.1)
    assert pace.added_s(5, 1) == pytest.approx(0.1), "of the next larger size"
    assert pace.added_s(17, 1) == pytest.approx(0.6 * 17 / 16), "in proportion to the largest"
    assert PrefillPace(MOST, delay_steps).added_s(100, 1) == 0.0


@pytest.mark.parametrize(("room_s", "tokens"), [(6.0, 512), (9.0, 512), (10.0, 1000)])
def test_a_most_that_is_no_power_of_two_is_computed_where_it_is_expected_to_fit(
    room_s: float, tokens: int
) -> None:
    pace = PrefillPace(1000, 0.0)
    pace.observe_step(1, STEP_S)
    chunks = serve_within(pace, room_s, 20_000, lambda tokens: 0.01 * tokens)
    assert chunks[:10] == [1 << exponent for exponent in range(10)]
    assert set(chunks[10:-1]) == {tokens}


def test_short_prompts_do_not_exceed_the_room_to_measure_a_longer_chunk() -> None:
    pace = PrefillPace(MOST, DELAY)
    pace.observe_step(1, STEP_S)
    chunks = [one for _ in range(50) for one in serve_within(pace, 0.3, 12, blocks_s)]
    assert max(chunks) == 8


def test_chunks_exceed_the_room_seldom_and_prompts_wait_a_bounded_number_of_steps() -> None:
    pace = PrefillPace(512, DELAY)
    pace.observe_step(1, STEP_S)
    for room_s, most_exceeding in ((0.05, 10), (0.15, 14)):
        chunks = serve_within(pace, room_s, 8 * 512, blocks_s)
        exceeding = sum(tokens > 0 and blocks_s(tokens) > room_s for tokens in chunks)
        assert len(chunks) <= 8 * LONG_INTERVAL
        assert exceeding <= min(most_exceeding, 2 + 0.006 * len(chunks))


def test_a_size_that_was_measured_on_a_bad_day_is_measured_again() -> None:
    pace = PrefillPace(MOST, DELAY)
    pace.observe_step(1, STEP_S)
    pace.observe_chunk(1, STEP_S + 100.0, 1)
    for _ in range(20 * RETRY_INTERVAL):
        pace.observe_step(1, STEP_S)
        if tokens := pace.tokens(1, 0.3, 8):
            pace.observe_chunk(tokens, STEP_S + 0.01 * tokens, 1)
    assert pace.tokens(1, 0.3, 8) == 8


def test_steps_with_drafts_do_not_hide_what_a_chunk_adds() -> None:
    pace = PrefillPace(MOST, DELAY)
    pace.observe_step(1, STEP_S)
    for _ in range(100):
        pace.observe_step(1, 3 * STEP_S, num_steps=5)
    pace.observe_chunk(4, 1.5 * STEP_S, 1, num_steps=0)
    assert pace.added_s(4, 1) == pytest.approx(0.5 * STEP_S)


def test_a_chunk_is_not_mostly_fixed_cost() -> None:
    """Each forward takes 3 steps whatever is in it: small chunks would only repeat that."""
    tokens = settled(3.0, 0.01, is_shared=False).tokens(1)
    assert 0.8 * 150 <= tokens <= 1.2 * 150
    assert settled(3.0, 0.0, is_shared=False).tokens(1) == MOST


def test_expensive_prompts_still_advance() -> None:
    assert settled(0.0, 1.0, is_shared=True).tokens(1) == MIN_TOKENS
    pace = PrefillPace(8, DELAY)
    pace.observe_step(1, STEP_S)
    pace.observe_chunk(8, 100.0, 0)
    assert pace.tokens(1) == 8


def test_larger_batches_have_longer_steps() -> None:
    pace = settled(0.0, 0.01, is_shared=True)
    pace.observe_step(16, 4 * STEP_S)
    assert pace.tokens(16) == pytest.approx(4 * pace.tokens(1), rel=0.1)
    assert pace.tokens(30) == pace.tokens(16)  # the nearest size that was measured
    for _ in range(100):
        pace.observe_step(1, STEP_S / 2)
    assert pace.tokens(1) < 100


def test_chunks_of_one_size_do_not_forget_the_fixed_part() -> None:
    pace = settled(3.0, 0.01, is_shared=False)
    for _ in range(500):
        pace.observe_chunk(tokens := pace.tokens(1), 3.0 + 0.01 * tokens, 0)
    assert 0.8 * 150 <= pace.tokens(1) <= 1.2 * 150


class CountedSeconds:
    """A clock of a forward: so many seconds for the weights, and one for each row."""

    def __init__(self, core: EngineCore, fixed_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds, self.rows = 0.0, list[int]()
        forward = type(core.context.target).forward

        def counted(target, ids, *arguments):
            self.rows.append(len(ids))
            self.seconds += fixed_s + len(ids)
            return forward(target, ids, *arguments)

        monkeypatch.setattr(type(core.context.target), "forward", counted)
        stopwatch = Stopwatch(torch.device("cpu"), lambda: self.seconds, lambda: self.seconds)
        core._launcher = Launcher(core.shapes, stopwatch)


@pytest.mark.parametrize(("delay_steps", "rows"), [(1.5, 1 + 1.5 * 41), (0.0, 1 + 200)])
def test_a_prompt_delays_a_running_request_by_the_bound(
    checkpoints, delay_steps: float, rows: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduling = {"chunked_prefill_tokens": 200, "prefill_delay_steps": delay_steps}
    document = boot_of(checkpoints, "NONE", 1, scheduling=scheduling)
    core = build_core(EngineBoot.model_validate(document))
    clock = CountedSeconds(core, 40, monkeypatch)
    vocab = core.context.target.config.vocab_size

    def submit(name: str, tokens: int, max_tokens: int) -> None:
        prompt = tuple(place * 13 % vocab for place in range(tokens))
        sampling = SamplingParams(seed=1, max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        core.submit(Request(name, prompt, sampling))

    submit("running", 30, 60)
    for _ in range(10):
        core.step()
    del clock.rows[:]
    submit("joining", 400, 3)
    while core.has_work():
        core.step()
    assert max(clock.rows) <= rows * 1.1
    if not delay_steps:
        assert max(clock.rows) == rows
