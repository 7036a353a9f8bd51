"""The prefix table against a naive one, and what it drops when it is full."""

import random

from specdecode_router.routing.prefix_table import SHARED_CONTINUATIONS, PrefixTable
from specdecode_router.routing.prompt_blocks import BLOCK_CHARACTERS, PromptBlocks, cut_text


def prompt(*parts: str) -> PromptBlocks:
    """A prompt with a block for each part."""
    return cut_text("".join(part.ljust(BLOCK_CHARACTERS) for part in parts))


def test_the_longest_beginning_that_an_engine_has_computed_is_known():
    table = PrefixTable()
    table.record(prompt("a", "b", "c"), "one")
    table.record(prompt("a", "x"), "two")
    assert table.match(prompt("a", "b", "c", "d")).depths == {"one": 3, "two": 1}
    assert table.match(prompt("a", "x", "c")).depths == {"one": 1, "two": 2}
    assert table.match(prompt("b")).depths == {}


def test_random_prompts_have_the_depths_of_a_naive_search():
    random.seed(11)
    table, recorded = PrefixTable(), []
    for _ in range(300):
        parts = [random.choice("abc") for _ in range(random.randint(1, 6))]
        engine = random.choice(["one", "two", "three"])
        table.record(prompt(*parts), engine)
        recorded.append((parts, engine))
        wanted = [random.choice("abc") for _ in range(6)]
        expected: dict[str, int] = {}
        for known, name in recorded:
            pairs = zip(known, wanted, strict=False)
            depth = next((i for i, (a, b) in enumerate(pairs) if a != b), len(known))
            expected[name] = max(expected.get(name, 0), depth)
        found = table.match(prompt(*wanted)).depths
        assert found == {name: depth for name, depth in expected.items() if depth}


def test_a_beginning_with_many_continuations_is_shared():
    table = PrefixTable()
    for number in range(SHARED_CONTINUATIONS):
        assert table.match(prompt("s", "t")).shared == 0
        table.record(prompt("s", "t", f"user {number}", "more"), "one")
    assert table.match(prompt("s", "t", "another")).shared == 2
    table.record(prompt("s", "t", "user 0", "less"), "one")
    assert table.match(prompt("s", "t", "user 0", "more")).shared == 2


def test_short_ends_of_prompts_count_as_continuations():
    table = PrefixTable()
    system = "s".ljust(BLOCK_CHARACTERS)
    for number in range(SHARED_CONTINUATIONS):
        table.record(cut_text(system + f"question {number}"), "one")
    assert table.match(cut_text(system + "question 9")).shared == 1


def test_the_least_recently_used_ends_are_dropped_first():
    table = PrefixTable(capacity=6)
    table.record(prompt("a", "b", "c"), "one")
    table.record(prompt("d", "e", "f"), "one")
    table.record(prompt("a", "b", "c"), "one")
    table.record(prompt("g", "h"), "one")
    assert len(table) == 6
    assert table.match(prompt("a", "b", "c")).depths == {"one": 3}
    assert table.match(prompt("d", "e", "f")).depths == {"one": 1}


def test_few_engines_are_kept_for_each_block():
    table = PrefixTable()
    for number in range(20):
        table.record(prompt("a"), f"engine {number}")
    assert len(table.match(prompt("a")).depths) == 8
    assert "engine 19" in table.match(prompt("a")).depths
