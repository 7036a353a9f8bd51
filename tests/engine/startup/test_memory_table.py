"""Loading an 8B model leaves all memory but that of its weights to the KV cache."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.engine.startup.caching_allocator import MIB, CachingAllocator
from tests.engine.startup.memory_table import RESULT, memory_table

LARGEST_TENSOR_GIB = 128_256 * 4096 * 2 / (1 << 30)
DOCS = Path(__file__).parents[3] / "docs" / "performance.md"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return json.loads(json.dumps(memory_table(tmp_path_factory.mktemp("8b"))))


def test_the_stored_table_is_what_the_engine_would_plan(table: Any) -> None:
    assert json.loads(RESULT.read_text()) == table, (
        "run python -m tests.engine.startup.memory_table"
    )


def test_fused_weights_cost_no_second_copy(table: Any) -> None:
    before, after = table["before"], table["after"]
    assert before["weights_gib"] == after["weights_gib"]
    assert after["cached_gib"] < 0.05
    assert before["cached_gib"] > 6
    assert after["peak_gib"] < after["weights_gib"] + LARGEST_TENSOR_GIB


def test_every_card_gets_a_larger_cache(table: Any) -> None:
    for card, row in table["after"]["cards"].items():
        assert row["free_gib"] - table["before"]["cards"][card]["free_gib"] > 6
        assert row["kv_tokens"] > table["before"]["cards"][card]["kv_tokens"] + 40_000


def test_the_documentation_contains_the_table(table: Any) -> None:
    text = DOCS.read_text()
    for card, row in table["after"]["cards"].items():
        before = table["before"]["cards"][card]
        assert (
            f"| {card} | {before['free_gib']} GiB, {before['kv_tokens']:,} tokens | "
            f"{row['free_gib']} GiB, {row['kv_tokens']:,} tokens |"
        ) in text


def test_the_simulated_allocator_keeps_splits_and_merges_blocks() -> None:
    allocator = CachingAllocator()
    large = allocator.allocate(30 * MIB)
    allocator.free(large)
    first, second = allocator.allocate(16 * MIB), allocator.allocate(14 * MIB)
    assert allocator.reserved_bytes == allocator.allocated_bytes == 30 * MIB
    allocator.free(first)
    allocator.free(second)
    assert allocator.allocate(30 * MIB) is first, "both parts were merged"
    assert allocator.reserved_bytes == 30 * MIB
    small = allocator.allocate(1)
    assert small.num_bytes == 512
    assert allocator.reserved_bytes == 32 * MIB
    allocator.free(small)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 30 * MIB
