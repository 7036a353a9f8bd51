"""Blocks of prompts: equal beginnings have equal hashes, whatever the order of fields."""

import json
import random
from typing import Any

import pytest

from specdecode_router.routing.prompt_blocks import (
    BLOCK_CHARACTERS,
    MAX_BLOCKS,
    MAX_PARSED_BYTES,
    MAX_PARSED_MARKS,
    cut_prompt,
    cut_text,
)

SYSTEM = {"role": "system", "content": "Be brief. " * 200}


def chat(*messages: Any, **fields: object) -> bytes:
    return json.dumps({**fields, "messages": [SYSTEM, *messages]}).encode()


def common(one: bytes, other: bytes) -> int:
    pairs = zip(cut_prompt(one).hashes, cut_prompt(other).hashes, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(cut_prompt(one).hashes))


def test_the_next_turn_of_a_conversation_begins_with_the_last_one():
    first = [{"role": "user", "content": "Why? " * 300}]
    turns = [*first, {"role": "assistant", "content": "So. " * 300}, *first]
    one, next_turn = chat(*first), chat(*turns, temperature=0.5, stream=True)
    assert common(one, next_turn) == len(cut_prompt(one).hashes) >= 6
    assert len(cut_prompt(next_turn).hashes) > len(cut_prompt(one).hashes)


def test_the_order_of_fields_and_options_do_not_matter():
    message = {"role": "user", "content": "hi"}
    assert cut_prompt(chat(message)) == cut_prompt(chat(message, seed=1, n=4))


def test_conversations_share_exactly_what_they_have_in_common():
    one, other = (chat({"role": "user", "content": text * 600}) for text in ("a", "b"))
    shared = len("\n<system>\n" + str(SYSTEM["content"])) // BLOCK_CHARACTERS
    assert common(one, other) == shared
    assert cut_prompt(one).branch_key(shared) != cut_prompt(other).branch_key(shared)


def test_requests_of_other_salts_have_nothing_in_common():
    message = {"role": "user", "content": "hi"}
    plain, one, other = chat(message), chat(message, cache_salt="a"), chat(message, cache_salt="b")
    assert common(plain, one) == common(one, other) == 0
    assert cut_prompt(one) == cut_prompt(chat(message, cache_salt="a", n=2))


@pytest.mark.parametrize("field", ["model", "lora_path"])
def test_requests_of_other_adapters_have_nothing_in_common(field):
    message = {"role": "user", "content": "hi" * 2000}
    plain, sql = chat(message), chat(message, **{field: "sql"})
    poems = chat(message, **{field: "poems"})
    assert common(plain, sql) == common(sql, poems) == 0
    assert cut_prompt(sql) == cut_prompt(chat(message, **{field: "sql", "n": 2}))


def test_parts_of_content_are_one_text():
    parts = [{"type": "text", "text": "a" * 400}, {"type": "text", "text": "b" * 400}]
    joined = {"role": "user", "content": "a" * 400 + "\n" + "b" * 400}
    assert cut_prompt(chat({"role": "user", "content": parts})) == cut_prompt(chat(joined))


def test_the_next_turn_of_blocks_begins_with_the_last_one():
    system = [{"type": "text", "text": "Be brief. " * 100, "cache_control": {"type": "ephemeral"}}]
    asked = {"role": "user", "content": [{"type": "text", "text": "Why? " * 100}]}
    call = {"type": "tool_use", "id": "a", "name": "f", "input": {"path": "a" * 600}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": "b" * 600}
    turn = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    one, two = ({"system": system, "messages": [asked, *turn[:count]]} for count in (0, 2))
    first, second = (cut_prompt(json.dumps(each).encode()) for each in (one, two))
    assert second.hashes[: len(first.hashes)] == first.hashes
    assert len(second.hashes) >= len(first.hashes) + 2
    other = json.loads(json.dumps(two).replace("bbb", "ccc"))
    assert cut_prompt(json.dumps(other).encode()).hashes != second.hashes


@pytest.mark.parametrize("depth", [400, 960, 985, 990, 995, 2000])
def test_a_part_of_any_depth_is_cut(depth):
    deep = "[" * depth + "]" * depth
    body = '{"messages": [{"role": "user", "content": [{"type": "a", "input": %s}]}]}'
    assert cut_prompt((body % deep).encode()).whole


@pytest.mark.parametrize("field", ["prompt", "input"])
def test_texts_token_ids_and_items_are_prompts(field):
    text = cut_prompt(json.dumps({field: "x" * 2000}).encode())
    assert len(text.hashes) == 3
    ids = [cut_prompt(json.dumps({field: [*range(1000), last]}).encode()) for last in (1, 2)]
    assert ids[0].hashes[:3] == ids[1].hashes[:3]
    assert ids[0] != ids[1]


def test_tools_are_before_messages():
    tools = [{"type": "function", "function": {"name": "f", "description": "d" * 2000}}]
    message = {"role": "user", "content": "hi"}
    assert common(chat(message, tools=tools), chat(message)) == 0


def test_a_block_depends_on_all_text_before_it():
    random.seed(4)
    text = "".join(random.choice("ab ") for _ in range(5000))
    changed = ("x" if text[0] != "x" else "y") + text[1:]
    assert not set(cut_text(text).hashes) & set(cut_text(changed).hashes)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"messages": 5}', b'{"messages": [5, null, "x"]}',
        b'{"messages": [{"role": ["x"], "content": {"a": 1}}]}', b'{"prompt": null}',
        b"[" * 100_000, b'{"prompt": "\\ud800"}', b'{"messages":[{"content":[{"text":1},2,null]}]}',
        b'{"tools": {"a": []}, "instructions": 4}', b'{"prompt": NaN}',
    ],
)  # fmt: skip
def test_any_body_has_a_key(body):
    assert cut_prompt(body).branch_key(3)


def test_long_bodies_are_cut_as_they_are_and_not_without_end():
    prompt = json.dumps({"prompt": "y" * (MAX_PARSED_BYTES + BLOCK_CHARACTERS * MAX_BLOCKS)})
    found = cut_prompt(prompt.encode())
    assert len(found.hashes) == MAX_BLOCKS
    assert found == cut_text(prompt)


def test_parts_without_text_add_nothing_however_many():
    """Each was once the text of all: 8,000 were 256 MB, and no stream went on for 15 seconds."""
    parts = [{"type": "text", "text": "x" * BLOCK_CHARACTERS}]
    others = [1, [], None, {}, {"type": "image_url", "image_url": {"url": "u"}}] * 500
    found, plain = (
        cut_prompt(json.dumps({"messages": [{"role": "user", "content": each}]}).encode())
        for each in ([*parts, *others], parts)
    )
    assert found.hashes[0] == plain.hashes[0]
    assert len(found.hashes) <= 1 + len(others) // BLOCK_CHARACTERS + 1


def test_a_body_of_very_many_small_values_is_cut_as_it_is():
    ids = {"prompt": [12345] * 131_072, "n": 1}
    assert cut_prompt(json.dumps(ids).encode()) == cut_text(json.dumps(ids["prompt"]))
    lists = json.dumps({"prompt": [[]] * MAX_PARSED_MARKS})
    assert len(lists) < MAX_PARSED_BYTES
    assert cut_prompt(lists.encode()) == cut_text(lists)
