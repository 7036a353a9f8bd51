"""The plan of memory: what is promised to others is not the cache's."""

from dataclasses import replace

import pytest

from specdecode_engine.memory import MemoryDemand, NotEnoughMemory, plan_memory

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


def test_captured_passes_are_taken_off_the_cache() -> None:
    assert plan_memory(DEMAND, None, 0.5).pages == 45
    demand = replace(DEMAND, graph_bytes=3_000)
    plan = plan_memory(demand, None, 0.5)
    assert plan.pages == 30
    assert any(line.startswith("captured passes") for line in plan.lines())


def test_what_they_leave_may_be_too_little() -> None:
    demand = replace(DEMAND, graph_bytes=8_500)
    with pytest.raises(NotEnoughMemory, match=r"lower .* or graphs\.max_bytes"):
        plan_memory(demand, None, 1.0)
    with pytest.raises(NotEnoughMemory, match="kv_cache_bytes 900 is more than the 500 bytes"):
        plan_memory(demand, 900, 1.0)
