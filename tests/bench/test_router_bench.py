"""`make bench-router` on few requests, with real programs, and how its figures are judged."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from bench.router.__main__ import hit_figures, missed
from bench.router.affinity import (
    CacheCounts,
    ConversationSizes,
    cache_flags,
    count_cached,
    write_long_model,
)
from bench.router.costs import CostSizes, measure_costs
from bench.router.programs import TOKEN, EngineProgram, RouterProgram

FEW = ConversationSizes(conversations=4, turns=3, system_tokens=300, clients=2)


@pytest.fixture(scope="module")
def programs(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[EngineProgram, RouterProgram]]:
    """An engine that reports cached tokens, and a router in front of it."""
    folder = tmp_path_factory.mktemp("router-bench")
    token_file = folder / "token"
    token_file.write_text(TOKEN)
    with ExitStack() as stack:
        model = write_long_model(folder / "model")
        engine = EngineProgram(token_file, *cache_flags(16_000), model=model)
        stack.callback(engine.close)
        router = RouterProgram(token_file, [engine.wait_ready()])
        stack.callback(router.close)
        yield engine, router.wait_ready(1)


def test_costs_are_those_of_the_router_and_count_every_event(
    programs: tuple[EngineProgram, RouterProgram],
) -> None:
    engine, router = programs
    sizes = CostSizes(tokens=3, single_tokens=20, requests=4)
    costs = asyncio.run(measure_costs(router, engine, sizes))
    # One for each token that completes a character, and the end marker.
    assert 64 + 1 < costs.events <= 64 * (3 + 1) + 20 + 1
    assert 0 < costs.cpu_ms_per_event < costs.cpu_ms_per_request
    assert costs.first_byte_ms > 0


def test_conversations_find_their_beginnings_in_the_cache_of_one_engine(
    programs: tuple[EngineProgram, RouterProgram],
) -> None:
    engine, router = programs
    first = asyncio.run(count_cached([engine.url], FEW, seed=1))
    assert first.prompt_tokens > 4 * 3 * 300
    assert 0.6 < first.share < 1
    again = asyncio.run(count_cached([router.url], FEW, seed=1))
    assert again.prompt_tokens == first.prompt_tokens
    assert again.share > first.share


def test_a_figure_that_misses_its_limit_is_named() -> None:
    counts = {
        "one": CacheCounts(1000, 800), "router": CacheCounts(1000, 600),
        "service": CacheCounts(1000, 400),
    }  # fmt: skip
    hits = hit_figures(counts)
    assert hits["hit_ratio"] == pytest.approx(0.75)
    assert hits["hit_ratio_service"] == pytest.approx(0.5)
    assert missed({**hits, "cpu_ms_per_event": 0.16}) == ["cpu_ms_per_event", "hit_ratio"]
    assert missed({"cpu_ms_per_event": 0.15}) == []
    assert missed({"hit_ratio": 0.9, "first_byte_ms_added_p50": 2.1}) == ["first_byte_ms_added_p50"]
