"""Texts that a limit cuts anywhere: no part of a marker is content or an argument."""

import json

import pytest

from specdecode_engine.serve.parsers.formats import MessageFormats
from specdecode_engine.serve.parsers.message import ContentDelta, ParserContext, ReasoningDelta
from specdecode_engine.serve.parsers.reasoning import THINK, HiddenParts
from specdecode_engine.serve.parsers.tool_formats import TOOL_FORMATS
from tests.engine.serve.parsers.samples import CASES, FIXTURES, TOOLS, join, parse

NAMES = sorted(FIXTURES)


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


# Texts of one call or more, without anything else, whose arguments are JSON.
CALLS = {
    name: [
        case["text"]
        for other, case in CASES
        if other == name
        and case["calls"]
        and not (case["content"] or case["reasoning"])
        and all(is_json(call["arguments"]) for call in case["calls"])
    ]
    for name in NAMES
}


@pytest.mark.parametrize("name", NAMES)
def test_no_marker_is_content_or_argument_when_it_is_cut(name: str) -> None:
    assert CALLS[name]
    for text in CALLS[name]:
        whole = parse(name, [text])
        for end in range(len(text)):
            cut = parse(name, [text[:end]])
            if cut.calls == whole.calls:
                assert cut.content == "", text[:end]
            for (called, arguments), (wanted, complete) in zip(
                cut.calls, whole.calls, strict=False
            ):
                assert called == wanted
                assert complete.startswith(arguments), text[:end]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_content_when_calls_are_required(name: str) -> None:
    """What there is of a call is a call or nothing; the thought before it stays."""
    formats = MessageFormats(None if name == "openai" else THINK, TOOL_FORMATS[name])
    for text in CALLS[name]:
        message = text if name == "openai" else f"<think>why</think>{text}"
        for end in range(len(message) + 1):
            parser = HiddenParts(formats.make_parser(ParserContext(parameters=TOOLS)), ContentDelta)
            deltas = [*parser.push(message[:end]), *parser.flush()]
            assert not any(isinstance(delta, ContentDelta) for delta in deltas)
            assert any(isinstance(delta, ReasoningDelta) for delta in deltas) or (
                name == "openai" or end <= len("<think>")
            )
        assert join(deltas).calls == parse(name, [text]).calls


@pytest.mark.parametrize(
    ("name", "text", "arguments"),
    [
        ("hermes", '<tool_call>\n{"name": "now", "arguments": {}}\n</tool', "{}"),
        ("qwen3_coder", "<tool_call>\n<function=now>\n</func", "{}"),
        ("qwen3_coder", "<tool_call>\n<function=now>\n<", "{"),
        (
            "glm45",
            "<tool_call>now\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</t",
            '{"a": 1}',
        ),
        ("glm45", "<tool_call>now\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<", '{"a": 1'),
        ("glm47", "<tool_call>now</tool_ca", "{}"),
        ("minimax_m2", '<minimax:tool_call>\n<invoke name="now">\n</inv', "{}"),
        ("deepseek_v3", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n``", "{}"),
        ("openai", "<|channel|>commentary to=functions.now<|message|>{}<|ca", "{}"),
        ("gemma4", "<|tool_call>call:now{a:tru", '{"a": '),
        ("pythonic", "[now(a='\\u00", '{"a": "'),
    ],
)
def test_a_call_is_complete_when_its_end_has_begun(name: str, text: str, arguments: str) -> None:
    parsed = parse(name, text)
    assert (parsed.content, parsed.calls) == ("", (("now", arguments),))
    assert parse(name, [text]) == parsed
