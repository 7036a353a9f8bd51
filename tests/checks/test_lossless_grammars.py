"""Checks of constrained output in the lossless suite refuse what their grammars do not allow."""

import pytest

from checks.lossless.grammars import CONSTRAINED_OUTPUTS

WRONG = [
    "",
    '{"name": "cat"}',
    '<tool_call>\n{"name": "see", "arguments": {}}\n</tool_call>',
    '{"name": "see", "parameters": {"often": 1}}',
    "[see(often=1)]",
    '[TOOL_CALLS] [{"name": "see", "arguments": {"often": "a"}}]',
    "<think>never closed yes",
]
RIGHT = [
    '{"name": "cat", "legs": 4}',
    "yes",
    '<tool_call>\n{"name": "see", "arguments": {"often": true}}\n</tool_call>',
    '{"name": "now", "parameters": {}}',
    "[see(often=true)]",
    '[TOOL_CALLS] [{"name": "now", "arguments": {}}]',
    "<think>so</think>\n\nno",
]


@pytest.mark.parametrize("text", WRONG[1:])
def test_what_no_grammar_allows_is_invalid_for_all(text: str) -> None:
    others = [each for each in CONSTRAINED_OUTPUTS if each.is_valid(text)]
    assert {each.source.text for each in others} <= {'{"type": "object"}', "[^aeiou]*"}


def test_an_empty_text_is_valid_only_where_nothing_is_demanded() -> None:
    valid = [each.source.text for each in CONSTRAINED_OUTPUTS if each.is_valid(WRONG[0])]
    assert valid == ["[^aeiou]*"]


@pytest.mark.parametrize("text", RIGHT)
def test_what_a_grammar_allows_is_valid(text: str) -> None:
    assert any(each.is_valid(text) for each in CONSTRAINED_OUTPUTS)
