"""Random tool calls of the lossless suite: what is drawn, and what counts as a valid call."""

import random

import pytest

from checks.lossless.tool_grammars import ToolCalls, draw_calls, draw_tools, with_markers
from specdecode_engine.grammar import TokenBytes
from specdecode_engine.serve.parsers.tool_formats import TOOL_FORMATS

EOS = 0
VOCABULARY = TokenBytes(
    [b"<eos>", *(bytes([byte]) for byte in range(256)), *[b"<spare>"] * 20],
    frozenset({EOS}),
    frozenset({EOS}),
)


def calls_of(name: str, seed: int = 0) -> ToolCalls:
    return draw_calls(random.Random(seed), name, VOCABULARY)


@pytest.mark.parametrize("name", sorted(TOOL_FORMATS))
def test_tools_of_any_seed_have_a_grammar_in_every_format(name: str) -> None:
    drawn = [calls_of(name, seed) for seed in range(8)]
    assert len({str(each.tools) for each in drawn}) > 1
    assert all(each.ends >= {EOS} for each in drawn)
    assert any(each.markers for each in drawn)


def test_the_same_seed_draws_the_same_tools() -> None:
    assert draw_tools(random.Random(3)) == draw_tools(random.Random(3))


def test_markers_take_the_places_of_the_last_tokens() -> None:
    tokens = with_markers(VOCABULARY, ["<a>", "<b>"])
    assert tokens.spellings[-3:] == [b"<spare>", b"<a>", b"<b>"]
    assert tokens.special_ids == {EOS, 275, 276}


def test_an_answer_that_did_not_end_has_no_text() -> None:
    calls = calls_of("hermes")
    assert calls.text([1 + ord("a")]) is None
    assert calls.text([]) is None
    assert calls.text([1 + ord("a"), EOS]) == "a"


SEE = {
    "see": {
        "type": "object",
        "properties": {"often": {"type": "boolean"}},
        "required": ["often"],
        "additionalProperties": False,
    }
}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('<tool_call>{"name": "see", "arguments": {"often": true}}</tool_call>', None),
        ('<tool_call>{"name": "see", "arguments": {"often": 1}}</tool_call>', "see: "),
        ('<tool_call>{"name": "look", "arguments": {}}</tool_call>', "look is not a tool"),
        ('So <tool_call>{"name": "see", "arguments": {"often": true}}', "there is content"),
        ('<tool_call>{"name": "see", "arguments": {"often": tr', "see: "),
        ("", "0 calls"),
    ],
)
def test_a_text_is_valid_only_if_its_calls_are(text: str, error: str | None) -> None:
    drawn = calls_of("hermes")
    calls = ToolCalls("hermes", SEE, False, VOCABULARY, {}, drawn.grammar)
    found = calls.error(text)
    assert found is None if error is None else str(found).startswith(error)


def test_two_calls_are_wrong_where_one_is_demanded() -> None:
    call = '<tool_call>{"name": "see", "arguments": {"often": true}}</tool_call>'
    for is_parallel, error in ((True, None), (False, "2 calls")):
        calls = ToolCalls("hermes", SEE, is_parallel, VOCABULARY, {}, calls_of("hermes").grammar)
        assert calls.error(call + call) == error
