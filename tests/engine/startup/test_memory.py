"""The plan of memory: what is promised to others is not the cache's."""

from dataclasses import replace

import pytest

from specdecode_engine.startup.memory import MemoryDemand, NotEnoughMemory, plan_memory

DEMAND = MemoryDemand(
    available_bytes=10_000,
    weight_bytes=0,
    draft_weight_bytes=0,
    fixed_bytes=1_000,
    graph_bytes=0,
    page_bytes=100,
    page_size=4,
    most_rows=10_000,
    fewest_rows=20,
)


def test_bytes_reserved_for_graphs_are_taken_off_the_cache() -> None:
    assert plan_memory(DEMAND, None, 0.5).pages == 45
    demand = replace(DEMAND, graph_bytes=3_000)
    plan = plan_memory(demand, None, 0.5)
    assert plan.pages == 30
    assert any(line.startswith("CUDA graphs") for line in plan.lines())


def test_what_they_leave_may_be_too_little() -> None:
    demand = replace(DEMAND, graph_bytes=8_500)
    with pytest.raises(NotEnoughMemory, match=r"lower .* or graphs\.max_bytes"):
        plan_memory(demand, None, 1.0)
    with pytest.raises(NotEnoughMemory, match="kv_cache_bytes 900 is more than the 500 bytes"):
        plan_memory(demand, 900, 1.0)


def test_the_cache_is_no_larger_than_max_total_tokens_and_no_smaller_than_a_request() -> None:
    limited = replace(DEMAND, most_rows=40)
    assert plan_memory(limited, None, 1.0).pages == 1 + 40 // DEMAND.page_size
    with pytest.raises(NotEnoughMemory, match="max_total_tokens 19 is less than the 20 tokens"):
        plan_memory(replace(DEMAND, most_rows=19), None, 1.0)
