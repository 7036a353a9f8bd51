"""A complete call in a thought that is never closed is a call; in a closed one it is text."""

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode_engine.batch.request import FinishReason, Output
from specdecode_engine.serve.openai.output_processor import OutputProcessor
from specdecode_engine.serve.parsers.formats import MessageFormats
from specdecode_engine.serve.parsers.message import ParserContext
from specdecode_engine.serve.parsers.reasoning import REASONING_TAGS, THINK, ReasoningTags
from specdecode_engine.serve.parsers.thought_calls import MAX_UNFINISHED, CallFinder
from specdecode_engine.serve.parsers.tool_formats import TOOL_FORMATS
from specdecode_engine.serve.text.tokenizer import Vocabulary
from tests.engine.serve.parsers.samples import CASES, TOOLS, ParsedText, cut, join, parse
from tests.engine.serve.parsers.test_cut_calls import CALLS

NAMES = sorted(name for name, each in TOOL_FORMATS.items() if each.call_markers)
MARKED = {
    name: [text for text in CALLS[name] if text.startswith(TOOL_FORMATS[name].call_markers)]
    for name in NAMES
}
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
NOW = (("now", "{}"),)


def tags_of(name: str) -> ReasoningTags:
    return REASONING_TAGS.get(name, THINK)


def read(
    name: str, pieces: Iterable[str], *, is_open: bool = True, finds_calls: bool = True
) -> ParsedText:
    formats = MessageFormats(tags_of(name), TOOL_FORMATS[name])
    parser = formats.make_parser(ParserContext(is_open, TOOLS, finds_calls))
    deltas = [delta for piece in pieces for delta in parser.push(piece)]
    return join([*deltas, *parser.flush()])


@pytest.mark.parametrize("name", NAMES)
def test_a_call_is_a_call_when_its_thought_is_never_closed(name: str) -> None:
    tags = tags_of(name)
    texts = MARKED[name]
    assert texts
    for text in texts:
        expected = ParsedText("", "Why not.", parse(name, [text]).calls)
        assert read(name, [f"Why not.\n{text}"]) == expected
        assert read(name, f"Why not.\n{text}") == expected
        assert read(name, [f"{tags.start}Why not.\n{text}"], is_open=False) == expected


@pytest.mark.parametrize("name", NAMES)
def test_a_call_is_text_when_its_thought_is_closed(name: str) -> None:
    for text in MARKED[name]:
        message = f"Why not.\n{text} So.\n{tags_of(name).end}\n\nyes"
        expected = ParsedText("yes", f"Why not.\n{text} So.", ())
        assert read(name, [message]) == expected
        assert read(name, message) == expected


@pytest.mark.parametrize(
    ("text", "content", "reasoning", "calls"),
    [
        (f"the tag <tool_call> is {CALL}", "", "the tag <tool_call> is ", NOW),
        (f"{CALL}\n{CALL} after", "after", "", NOW * 2),
        ('first <tool_call>\n{"name": "now", "argu', "", None, ()),
        ('first <tool_call>\n{"name": "now", "arguments": {"a": ', "", None, ()),
        ('<tool_call>\n{"name": "now", "arguments": {}}\n</tool', "", "", NOW),
        ('<tool_call>\n{"name": "now", "arguments": [1]}\n</tool_call>', "", None, ()),
        (f'<tool_call>{{"name": "now", "arguments": {{a}}}}</tool_call>{CALL}', "", None, NOW),
        ("first <tool_ca", "", "first <tool_ca", ()),
        (f"a\n\n{CALL}\n</thi", "", "a", NOW),
    ],
)
def test_only_a_complete_call_ends_a_thought(text, content, reasoning, calls) -> None:
    """None stands for all of the text before the calls."""
    found = read("hermes", [text])
    assert found.calls == calls
    assert found.content == content
    before = text.removesuffix(CALL) if calls else text
    assert found.reasoning == (before if reasoning is None else reasoning)
    assert read("hermes", text) == found


def test_a_call_of_hunyuan_a13b_in_a_thought_is_none() -> None:
    call = '<tool_calls>[{"name": "now", "arguments": {}}]</tool_calls>'
    for end in ("", " So."):
        assert read("hunyuan_a13b", [f"why {call}{end}"]) == ParsedText("", f"why {call}{end}", ())
    closed = f"why {call}</think>\n<answer>\n{call}\n</answer>"
    assert read("hunyuan_a13b", closed) == ParsedText("", f"why {call}", NOW)


def test_a_call_stays_in_a_thought_when_a_grammar_closes_it() -> None:
    assert read("hermes", [f"why {CALL}"], finds_calls=False) == ParsedText("", f"why {CALL}", ())


FRAGMENTS = ["<think>", "</think>", "<tool_call>", "</tool", CALL, "a ", "\n", '{"name"', "<"]


@settings(deadline=None, max_examples=60)
@given(
    pieces=st.lists(st.sampled_from(FRAGMENTS), max_size=8),
    positions=st.lists(st.integers(0, 1_000), max_size=12),
    is_open=st.booleans(),
)
def test_the_parts_are_the_same_when_a_thought_is_split(pieces, positions, is_open) -> None:
    text = "".join(pieces)
    whole = read("hermes", [text], is_open=is_open)
    assert read("hermes", cut(text, positions), is_open=is_open) == whole


def test_few_calls_are_tried_when_many_break_off() -> None:
    tried = 0

    def make_parser():
        nonlocal tried
        tried += 1
        return TOOL_FORMATS["hermes"].make_parser(ParserContext(parameters=TOOLS))

    finder = CallFinder(("<tool_call>",), make_parser)
    broken = '<tool_call>{"name": "now", "arguments": {"a": ['
    assert finder.find(broken * 200) is None
    assert tried == MAX_UNFINISHED
    assert finder.find("<tool_call> is a tag. " * 100 + CALL) == 100 * len("<tool_call> is a tag. ")


@pytest.mark.parametrize(
    ("text", "is_reasoning"),
    [("why " + CALL, False), (f"why {CALL}</think>", True), ("why <tool_call>", True)],
)
def test_tokens_of_a_call_are_no_reasoning(byte_level, text: str, is_reasoning: bool) -> None:
    vocabulary = Vocabulary(byte_level)
    formats = MessageFormats(THINK, TOOL_FORMATS["hermes"])
    parser = formats.make_parser(ParserContext(True, TOOLS))
    choice = OutputProcessor(0, vocabulary, parser=parser)
    before, after = (
        byte_level.encode(part, add_special_tokens=False).ids
        for part in ("why ", text.removeprefix("why ").removesuffix("</think>"))
    )
    tag = byte_level.encode("</think>" if text.endswith("</think>") else "").ids
    choice.push(Output("a", (*before, *after, *tag), finish_reason=FinishReason.STOP))
    reasoning = len(before) + len(after) * is_reasoning
    begun = choice.reasoning_tokens - reasoning  # of the marker, and of the tag but for its end
    assert 0 <= begun <= max(len(tag) - 1, 0) + (0 if is_reasoning else len("<tool_call>"))
    assert choice.has_tool_calls is not is_reasoning


def test_every_format_has_markers_that_its_samples_begin_with() -> None:
    for name in NAMES:
        texts = [case["text"] for other, case in CASES if other == name and case["calls"]]
        assert any(marker in text for text in texts for marker in TOOL_FORMATS[name].call_markers)
