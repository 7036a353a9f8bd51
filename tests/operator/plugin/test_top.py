"""What `top` shows, from what the engine's own metrics export."""

from dataclasses import replace

import pytest
from prometheus_client import generate_latest

from specdecode_api.metrics import MetricSpec, core, speculation
from specdecode_engine.stats.prometheus import EngineMetrics
from specdecode_engine.stats.snapshot import CoreSnapshot
from specdecode_operator.plugin import engine_sample, rates
from specdecode_operator.plugin.top_view import Engine, Fleet, draw_top

DECODE = (
    (core.DECODE_STEPS, speculation.RANGE_STEPS),
    (core.REQUEST_STEPS, speculation.RANGE_REQUEST_STEPS),
    (core.DRAFTED_TOKENS, speculation.RANGE_DRAFTED_TOKENS),
    (core.ACCEPTED_TOKENS, speculation.RANGE_ACCEPTED_TOKENS),
    (core.EMITTED_TOKENS, speculation.RANGE_EMITTED_TOKENS),
    (core.DECODE_SECONDS, speculation.RANGE_DECODE_SECONDS),
)


def ranged(bound, num_steps, steps):
    totals = (
        steps, 2 * steps, 2 * steps * num_steps, num_steps * steps, (num_steps + 2) * steps,
        steps / 100,
    )  # fmt: skip
    return (str(bound),), num_steps, totals


def snapshot(*ranges, **more):
    values: dict[MetricSpec, dict[tuple[str, ...], float]] = {
        core.RUNNING_REQUESTS: {(): 2},
        core.WAITING_REQUESTS: {(): 1},
        core.KV_PAGES: {("free",): 75, ("used",): 25},
        core.NUM_STEPS: {(): 3},
        core.ACTIVE_RANGE: {(): 1},
        speculation.RANGE_NUM_STEPS: {at: steps for at, steps, _ in ranges},
        speculation.RANGE_WASTED_TOKENS: {at: totals[2] - totals[3] for at, _, totals in ranges},
    }
    for place, (whole, ranged_series) in enumerate(DECODE):
        values[ranged_series] = {at: totals[place] for at, _, totals in ranges}
        values[whole] = {(): sum(totals[place] for _, _, totals in ranges)}
    values |= {getattr(core, name): {(): value} for name, value in more.items()}
    return CoreSnapshot(values)


def exported(shown):
    return generate_latest(EngineMetrics(lambda: shown).registry).decode()


def sample(shown, at_s):
    return engine_sample.read(exported(shown), at_s)


BEFORE = snapshot(
    ranged(1, 3, 100),
    ranged(8, 1, 0),
    CACHE_QUERIED_TOKENS=100,
    CACHE_HIT_TOKENS=10,
)
AFTER = snapshot(
    ranged(1, 3, 180),
    ranged(8, 1, 20),
    CACHE_QUERIED_TOKENS=300,
    CACHE_HIT_TOKENS=110,
)


def test_an_engines_text_is_read_in_full():
    read = sample(AFTER, 5.0)
    assert (read.at_s, read.num_steps) == (5.0, 3)
    assert (read.running_requests, read.waiting_requests) == (2, 1)
    assert (read.kv_pages_free, read.kv_pages_used) == (75, 25)
    assert (read.window_pages_free, read.window_pages_used) == (0, 0)
    assert (read.hit_tokens, read.queried_tokens) == (110, 300)
    assert read.totals.emitted_tokens == 960
    assert [(each.bound, each.num_steps) for each in read.ranges] == [(1, 3), (8, 1)]
    assert [each.totals.steps for each in read.ranges] == [180, 20]


@pytest.mark.parametrize(("pages", "shown"), [((5, 35, 10), "90%"), ((45, 3, 2), "25%")])
def test_the_kv_column_is_of_the_fuller_pool(paint, pages, shown):
    states = (("free",), ("reserved",), ("used",))
    windows = {core.KV_WINDOW_PAGES: dict(zip(states, pages, strict=True))}
    read = sample(CoreSnapshot(AFTER.values | windows), 5.0)
    assert (read.window_pages_free, read.window_pages_used) == (pages[0], pages[1] + pages[2])
    painted = paint(
        draw_top([Fleet("default", "chat", "NONE, no draft", (Engine("a", now=read),))])
    )
    assert shown in painted


def test_every_figure_of_a_rate():
    pair = (sample(BEFORE, 10.0), sample(AFTER, 14.0))
    found = rates.engine_rates([pair])
    assert found.tokens_per_s == 460 / 4
    assert found.steps_per_s == 100 / 4
    assert found.accept_length == 2.3
    assert found.kept == 260 / (2 * 80 * 3 + 2 * 20)
    assert found.decoding == pytest.approx(0.25)
    first, last = rates.range_rates([pair])
    assert (first.bound, first.end, first.num_steps) == (1, 7, (3,))
    assert (last.bound, last.end, last.num_steps) == (8, None, (1,))
    assert (first.rates.tokens_per_s, last.rates.tokens_per_s) == (100, 15)
    assert rates.hit_share([pair]) == 0.5


def test_sums_are_made_before_dividing():
    busy = (sample(BEFORE, 0.0), sample(AFTER, 1.0))
    slow = snapshot(ranged(1, 3, 101), ranged(8, 1, 0))
    changed = {core.EMITTED_TOKENS: {(): 501}, core.REQUEST_STEPS: {(): 300}}
    slow = CoreSnapshot(slow.values | changed)
    calm = (sample(BEFORE, 0.0), sample(slow, 1.0))
    assert rates.engine_rates([calm]).accept_length == 1 / 100
    assert rates.engine_rates([busy, calm]).accept_length == 461 / 300


def test_an_engine_that_started_again_is_distinguished_from_one_that_continued():
    first, later = sample(BEFORE, 0.0), sample(AFTER, 1.0)
    assert rates.is_same_run(first, later)
    assert not rates.is_same_run(later, replace(first, at_s=2.0))
    assert Engine("a", now=replace(first, at_s=2.0), before=later).pair is None


@pytest.mark.parametrize("text", ["", "# nothing\n", "specdecode_num_steps 3\n", "<html>"])
def test_a_text_that_is_no_engines_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        engine_sample.read(text, 0.0)


def test_the_picture_of_two_engines(paint):
    fleet = Fleet(
        "default",
        "chat",
        "EAGLE3, chain, 3 steps",
        (
            Engine("chat-a", now=sample(AFTER, 14.0), before=sample(BEFORE, 10.0)),
            Engine("chat-b", now=sample(BEFORE, 14.0), before=sample(BEFORE, 10.0)),
            Engine("chat-c", now=sample(BEFORE, 14.0), before=sample(AFTER, 10.0)),
            Engine("chat-d", problem="ContainerCreating"),
        ),
    )
    empty = Fleet("team", "idle", "NONE, no draft", ())
    assert paint(draw_top([fleet, empty])) == (
        """\
default/chat  EAGLE3, chain, 3 steps
  ENGINE  STEPS  ACCEPT  MEAN  TOK/S  KEPT  RUN  WAIT   KV  CACHE  NOTE
  chat-a      3    2.30  2.40  115.0   50%    2     1  25%    50%
  chat-b      3       –  2.50    0.0     –    2     1  25%      –
  chat-c      3       –  2.50      –     –    2     1  25%      –  restarted
  chat-d      –       –     –      –     –    –     –    –      –  ContainerCreating
  all         3    2.30  2.45  115.0   50%    6     3  25%    50%

  BATCH  STEPS  ACCEPT  TOK/S  STEPS/S  KEPT  DECODING
  1–7        3    2.50  100.0     20.0   50%       20%
  8+         1    1.50   15.0      5.0   50%        5%

team/idle  NONE, no draft
  no pods
"""
    )


def test_ranges_are_left_out_where_there_is_one(paint):
    one = snapshot(ranged(1, 3, 5))
    engine = Engine("chat-a", now=sample(one, 1.0), before=sample(one, 0.0))
    assert "BATCH" not in paint(draw_top([Fleet("default", "chat", "", (engine,))]))
