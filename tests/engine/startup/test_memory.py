"""The plan of memory: what is promised to others is not the cache's."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode_api.boot import MemoryBoot
from specdecode_engine.startup.memory import (
    DeviceMemory,
    MemoryDemand,
    NotEnoughMemory,
    plan_memory,
    share_of_device,
)

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


def test_ids_of_experts_are_counted_with_the_pages() -> None:
    plan = plan_memory(replace(DEMAND, routed_page_bytes=50), None, 0.5)
    assert plan.pages == 30
    assert plan.kv_bytes == 30 * DEMAND.page_bytes
    assert any(line.startswith("routed experts") for line in plan.lines())
    assert not any(line.startswith("routed") for line in plan_memory(DEMAND, None, 0.5).lines())


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


def test_a_share_of_the_device_holds_weights_buffers_and_cache() -> None:
    demand = replace(DEMAND, graph_bytes=500, state_bytes=700)
    device = DeviceMemory(total_bytes=20_000, free_bytes=16_000)  # 6,000 were loaded
    assert share_of_device(MemoryBoot(), demand, device) is None
    whole = share_of_device(MemoryBoot(device_fraction=0.9), demand, device)
    assert whole == 18_000 - 6_000 - 1_000 - 500 - 700
    static = share_of_device(MemoryBoot(static_fraction=0.75), demand, device)
    assert static == 12_000 - 6_000 - 700
    assert plan_memory(demand, None, 0.85, static).pages == 5_300 // DEMAND.page_bytes
    assert plan_memory(demand, 4_000, 0.85, static).pages == 40
    left = plan_memory(demand, None, 0.85, whole)
    assert left.pages == (10_000 - 2_200) // DEMAND.page_bytes, "no more than is left"
    with pytest.raises(NotEnoughMemory, match=r"the key-value cache gets 0\.0 MiB"):
        plan_memory(demand, None, 0.85, -1)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    page_bytes=st.integers(0, 50),
    window_page_bytes=st.integers(1, 50),
    most_window_pages=st.integers(7, 90),
    most_pages=st.integers(6, 300),
    budget=st.integers(600, 9_000),
)
def test_window_pages_suffice_for_running_requests_and_all_fit(
    page_bytes: int, window_page_bytes: int, most_window_pages: int, most_pages: int, budget: int
) -> None:
    demand = replace(
        DEMAND, page_bytes=page_bytes, window_page_bytes=window_page_bytes,
        most_window_pages=most_window_pages, fewest_window_pages=7,
        most_rows=most_pages * DEMAND.page_size,
    )  # fmt: skip
    plan = plan_memory(demand, budget, 1.0)
    used = plan.pages * page_bytes + plan.window_pages * window_page_bytes
    assert plan.kv_bytes == used <= budget
    assert min(plan.pages, most_window_pages, max(7, plan.pages // 2)) <= plan.window_pages
    assert min(plan.pages, max(7, plan.pages // 4)) <= plan.window_pages <= plan.pages
    # No fewer pages than if every page had a window page.
    assert plan.pages >= min(budget // (page_bytes + window_page_bytes), 1 + most_pages)


def test_a_window_leaves_its_bytes_to_other_layers() -> None:
    """Half of the layers have a window, and few requests run: the cache has more pages."""
    demand = replace(DEMAND, page_bytes=50, window_page_bytes=50, most_window_pages=20)
    plan = plan_memory(demand, 9_000, 1.0)
    assert (plan.pages, plan.window_pages) == (144, 36)
    assert any("144 pages, 36 of sliding windows" in line for line in plan.lines())
    scarce = plan_memory(demand, 1_500, 1.0)
    assert (scarce.pages, scarce.window_pages) == (20, 10), "half, though requests could use 20"
    one = plan_memory(replace(demand, fewest_window_pages=15), 1_500, 1.0)
    assert one.pages == one.window_pages == 15
