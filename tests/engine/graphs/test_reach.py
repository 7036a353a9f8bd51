"""Captured pairs against an oracle that lets batches come and go and notes what is decided."""

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.cpu.graphs.tables import TABLES, NamedTable
from specdecode_engine.adaptive.table import (
    BatchRange,
    MarginRouting,
    PaddedRouting,
    RangeTable,
    Routing,
)
from specdecode_engine.graphs.plan import batch_sizes, reachable

ROUTINGS = ("exact", "padded", "band", "wide band")


def make_routing(name: str, sizes: tuple[int, ...]) -> Routing:
    routings: dict[str, Routing] = {
        "exact": PaddedRouting(),
        "padded": PaddedRouting(sizes),
        "band": MarginRouting(),
        "wide band": MarginRouting(0.5),
    }
    return routings[name]


def decided_in_any_history(
    table: RangeTable, routing: Routing, sizes: tuple[int, ...], max_running: int
) -> set[tuple[int, int]]:
    """Follow every history of batch sizes: what the next decision depends on is the last slot."""
    pairs: set[tuple[int, int]] = set()
    req_indices: list[int | None] = [None]
    for req_index in req_indices:  # grows while it is walked
        for batch_size in range(1, max_running + 1):
            entry = routing.route(table, batch_size, req_index)
            fitting = [size for size in sizes if size >= batch_size]
            if fitting:
                pairs |= {(steps, min(fitting)) for steps in entry.candidate_steps}
            if entry.lower_bound not in req_indices:
                req_indices.append(entry.lower_bound)
    return pairs


def pairs_of(reach: Iterable[tuple[int, BatchRange]]) -> set[tuple[int, int]]:
    return {(steps, size) for size, entry in reach for steps in entry.candidate_steps}


@pytest.mark.parametrize("routing_name", ROUTINGS)
@pytest.mark.parametrize("named", TABLES, ids=lambda named: named.name)
@pytest.mark.parametrize("wanted", [None, (1, 3, 8), (), (5,)], ids=str)
def test_ten_tables_capture_what_the_oracle_reaches(
    named: NamedTable, routing_name: str, wanted: tuple[int, ...] | None
) -> None:
    sizes = batch_sizes(named.max_running, wanted)
    routing = make_routing(routing_name, sizes)
    reach = list(reachable(named.table, routing, sizes, named.max_running))
    expected = decided_in_any_history(named.table, routing, sizes, named.max_running)
    assert pairs_of(reach) == expected
    assert len(reach) == len({(size, entry.lower_bound) for size, entry in reach})


@pytest.mark.parametrize("routing_name", ROUTINGS)
def test_the_oracle_finds_what_walking_every_history_of_four_batches_finds(
    routing_name: str,
) -> None:
    entries = ((1, (1, 5)), (4, (0, 3)), (7, (2,)), (9, (8,)))
    table = RangeTable(BatchRange(bound, steps) for bound, steps in entries)
    sizes, most = (1, 2, 4, 8), 8
    routing = make_routing(routing_name, sizes)
    walked: set[tuple[int, int]] = set()
    for history in itertools.product(range(1, most + 1), repeat=4):
        req_index = None
        for batch_size in history:
            entry = routing.route(table, batch_size, req_index)
            req_index = entry.lower_bound
            size = min(size for size in sizes if size >= batch_size)
            walked |= {(steps, size) for steps in entry.candidate_steps}
    assert decided_in_any_history(table, routing, sizes, most) == walked


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_table_captures_what_the_oracle_reaches(data: st.DataObject) -> None:
    steps = st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True).map(sorted).map(tuple)
    entries = data.draw(st.dictionaries(st.integers(1, 30), steps, min_size=1, max_size=5))
    table = RangeTable(BatchRange(bound, candidates) for bound, candidates in entries.items())
    most = data.draw(st.integers(1, 24))
    wanted = data.draw(st.none() | st.lists(st.integers(1, 30), max_size=5))
    sizes = batch_sizes(most, wanted)
    routing = make_routing(data.draw(st.sampled_from(ROUTINGS)), sizes)
    expected = decided_in_any_history(table, routing, sizes, most)
    assert pairs_of(reachable(table, routing, sizes, most)) == expected


def test_the_published_example() -> None:
    """SGLang's default table with graphs of 4, 8, 16 and 32."""
    sizes = (4, 8, 16, 32)
    reach = reachable(TABLES[0].table, PaddedRouting(sizes), sizes, 32)
    expected = {0: (32, 16, 8), 1: (32, 16, 8, 4), 3: (16, 8, 4), 5: (4,), 7: (4,)}
    assert pairs_of(reach) == {(steps, size) for steps in expected for size in expected[steps]}


def test_num_steps_that_no_batch_reaches_have_no_pairs() -> None:
    named = TABLES[-1]
    sizes = batch_sizes(named.max_running)
    reach = reachable(named.table, PaddedRouting(), sizes, named.max_running)
    assert 16 in named.table.candidates()
    assert 16 not in {steps for steps, _ in pairs_of(reach)}
