"""Reasoning between tags: separated wherever the text is cut."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdecode_engine.serve.parsers.formats import MessageFormats
from specdecode_engine.serve.parsers.message import (
    ChainedParser,
    ContentDelta,
    ContentParser,
    MessageDelta,
    ParserContext,
    ReasoningDelta,
    ReasoningParser,
)
from specdecode_engine.serve.parsers.reasoning import (
    MAX_LEADING_SPACE,
    REASONING_TAGS,
    THINK,
    HiddenParts,
    ReasoningTags,
    TaggedReasoningParser,
    detect_reasoning_format,
)

PIECES = st.sampled_from(["<think>", "</think>", "<", "think", ">", "/", "\n", " ", "a", "bc"])
TEXTS = st.lists(PIECES, max_size=14).map("".join)


def split(text: str, sizes: list[int]) -> list[str]:
    pieces, start = [], 0
    for size in sizes:
        pieces.append(text[start : start + size])
        start += size
    return [*pieces, text[start:]]


def parts(parser: ReasoningParser, pieces: list[str]) -> tuple[str, str]:
    """Return reasoning and content."""
    deltas: list[MessageDelta] = []
    for piece in pieces:
        deltas += parser.push(piece)
    deltas += parser.flush()
    reasoning = "".join(each.text for each in deltas if isinstance(each, ReasoningDelta))
    content = "".join(each.text for each in deltas if isinstance(each, ContentDelta))
    return reasoning, content


def parse(text: str, is_open: bool = False, tags: ReasoningTags = THINK) -> tuple[str, str]:
    return parts(TaggedReasoningParser(tags, is_open), [text])


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<think>\nwhy\n\nnot\n</think>\n\nyes", "why\n\nnot", "yes"),
        ("\n<think>why</think>yes</think>", "why", "yes</think>"),
        ("<think></think>yes", "", "yes"),
        ("<think>\n\n</think>\n\nyes\n", "", "yes\n"),
        ("<think>why", "why", ""),
        ("<think>why</thi", "why</thi", ""),
        ("the tag <think>is shown</think>", "", "the tag <think>is shown</think>"),
        ("  <thin", "", "  <thin"),
        ("\n\nyes", "", "\n\nyes"),
        ("", "", ""),
    ],
)
def test_reasoning_at_the_beginning_is_separated(text: str, reasoning: str, content: str) -> None:
    assert parse(text) == (reasoning, content)


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("\nwhy\n</think>\n\nyes", "why", "yes"),
        ("<think>why</think>yes", "why", "yes"),
        ("why <think> twice</think>yes", "why <think> twice", "yes"),
        ("</think>yes", "", "yes"),
        ("  <thin", "  <thin", ""),
    ],
)
def test_a_prompt_that_opens_reasoning_needs_no_tag(
    text: str, reasoning: str, content: str
) -> None:
    assert parse(text, is_open=True) == (reasoning, content)


@pytest.mark.parametrize("name", REASONING_TAGS)
def test_each_family_has_its_tags(name: str) -> None:
    tags = REASONING_TAGS[name]
    assert parse(f"{tags.start}why{tags.end}yes", tags=tags) == ("why", "yes")
    other = REASONING_TAGS["qwen3" if name == "mistral" else "mistral"]
    assert parse(f"{other.start}why{other.end}yes", tags=tags)[0] == ""


GEMMA = REASONING_TAGS["gemma4"]


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<|channel>thought\nwhy\n\nnot\n<channel|>yes", "why\n\nnot", "yes"),
        ("<|channel>thought\n<channel|>\nyes", "", "yes"),
        ("<|channel>why<channel|>yes", "why", "yes"),
        ("<|channel>thoughts<channel|>yes", "thoughts", "yes"),
        ("<|channel>thou", "", ""),
        ("thought\nyes", "", "thought\nyes"),
    ],
)
def test_a_label_after_the_opening_tag_belongs_to_no_part(
    text: str, reasoning: str, content: str
) -> None:
    assert parse(text, tags=GEMMA) == (reasoning, content)
    assert parts(TaggedReasoningParser(GEMMA, is_open=False), [*text]) == (reasoning, content)


@given(
    text=st.lists(
        st.sampled_from(["<|channel>", "<channel|>", "thought\n", "thou", "\n", " ", "a"]),
        max_size=10,
    ).map("".join),
    sizes=st.lists(st.integers(0, 6), max_size=20),
    is_open=st.booleans(),
)
def test_a_label_does_not_depend_on_the_pieces(text: str, sizes: list[int], is_open: bool) -> None:
    pieces = split(text, sizes)
    assert parts(TaggedReasoningParser(GEMMA, is_open), pieces) == parse(text, is_open, GEMMA)


def test_a_prompt_may_end_with_the_label() -> None:
    assert GEMMA.are_open("<tool_response|><|channel>thought\n")
    assert GEMMA.are_open("<|turn>model\n<|channel>")
    assert not GEMMA.are_open("<|turn>model\n<|channel>thought\n<channel|>")


@given(text=TEXTS, sizes=st.lists(st.integers(0, 6), max_size=20), is_open=st.booleans())
def test_the_parts_do_not_depend_on_the_pieces(text: str, sizes: list[int], is_open: bool) -> None:
    pieces = split(text, sizes)
    assert parts(TaggedReasoningParser(THINK, is_open), pieces) == parse(text, is_open)


@given(text=TEXTS, is_open=st.booleans())
def test_nothing_but_tags_line_breaks_and_space_before_the_first_tag_is_lost(
    text: str, is_open: bool
) -> None:
    def letters(text: str) -> str:
        return text.replace("<think>", "").replace("</think>", "").replace("\n", "")

    bare = text.lstrip()
    has_tag = bare.startswith("<think>") and len(text) - len(bare) <= MAX_LEADING_SPACE
    reasoning, content = parse(text, is_open)
    assert letters(reasoning) + letters(content) == letters(bare if has_tag else text)


def test_white_space_without_end_is_content() -> None:
    space = " " * (MAX_LEADING_SPACE + 1)
    assert parse(f"{space}<think>why") == ("", f"{space}<think>why")
    parser = TaggedReasoningParser(THINK, is_open=False)
    released = [parser.push(" ") for _ in space]
    assert released[-1] == [ContentDelta(space)]


@pytest.mark.parametrize(
    ("prompt", "continued", "is_open"),
    [
        ("<|im_start|>assistant\n<think>\n", "", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "", False),
        ("what is <think>?<|im_end|>\n<|im_start|>assistant\n", "", False),
        ("assistant\n<think>\nfirst", "<think>\nfirst", True),
        ("assistant\n<think>\nfirst</think>then", "<think>\nfirst</think>then", False),
    ],
)
def test_only_the_end_of_a_prompt_opens_reasoning(
    prompt: str, continued: str, is_open: bool
) -> None:
    assert THINK.are_open(prompt, continued) is is_open


GRANITE, HUNYUAN, ERNIE = (REASONING_TAGS[n] for n in ("granite", "hunyuan_a13b", "ernie45"))


def read_message(tags: ReasoningTags, pieces: Iterable[str]) -> tuple[str, str]:
    return parts(MessageFormats(tags).make_parser(ParserContext()), [*pieces])


@pytest.mark.parametrize(
    ("tags", "text", "reasoning", "content"),
    [
        (
            GRANITE,
            "Here is my thought process:\n\nWhy.\n\nHere is my response:\n\nYes.",
            "Why.",
            "Yes.",
        ),
        (GRANITE, "Here is my answer: yes", "", "Here is my answer: yes"),
        (HUNYUAN, "<think>\nwhy\n</think>\n<answer>\nyes\n</answer>", "why", "yes"),
        (HUNYUAN, "<think>\n\n</think>\n<answer>\nyes\n</answer>\n", "", "yes"),
        (HUNYUAN, "yes\n</answer>", "", "yes"),
        (HUNYUAN, "the tag </answer> ends it", "", "the tag </answer> ends it"),
        (HUNYUAN, "<answer>\nyes\n</ans", "", "yes\n"),
        (HUNYUAN, "<answer>a</answer> b </answer> c", "", "a b </answer> c"),
        (ERNIE, "<think>\nwhy\n</think>\n\n<response>\nyes\n</response>\n", "why", "yes"),
        (ERNIE, "<think>why</think>\nyes", "why", "yes"),
        (ERNIE, "<response>yes", "", "yes"),
        (ERNIE, "  <respons", "", "  <respons"),
    ],
)
def test_the_tags_around_an_answer_belong_to_no_part(tags, text, reasoning, content) -> None:
    assert read_message(tags, [text]) == (reasoning, content)
    assert read_message(tags, text) == (reasoning, content)


@given(
    text=st.lists(
        st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "</an", "\n", " ", "a"]),
        max_size=12,
    ).map("".join),
    sizes=st.lists(st.integers(0, 6), max_size=20),
)
def test_an_answer_does_not_depend_on_the_pieces(text: str, sizes: list[int]) -> None:
    assert read_message(HUNYUAN, split(text, sizes)) == read_message(HUNYUAN, [text])


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{% set inner_token = '<|inner_prefix|>' %}", "apertus"),
        ("Write your thoughts after 'Here is my thought process:' and", "granite"),
        ("'<think>\\n\\n</think>\\n' … '<answer>\\n' + content + '\\n</answer>'", "hunyuan_a13b"),
        ("between <think></think> and … between <response></response>", "ernie45"),
        ("'<|start_of_role|>assistant<|end_of_role|><think>\\n' … </think>", "deepseek_r1"),
    ],
)
def test_the_form_of_reasoning_is_detected(template: str, name: str) -> None:
    assert detect_reasoning_format(template) == name


def test_hidden_reasoning_leaves_the_content() -> None:
    parser = HiddenParts(TaggedReasoningParser(THINK, is_open=False), ReasoningDelta)
    assert parts(parser, ["<think>wh", "y</think>ye", "s"]) == ("", "yes")


def test_the_parser_of_calls_reads_the_content_alone() -> None:
    class Shouting(ContentParser):
        def push(self, piece: str) -> list[MessageDelta]:
            return super().push(piece.upper())

    parser = ChainedParser(TaggedReasoningParser(THINK, is_open=False), Shouting())
    assert parts(parser, ["<think>why</think>yes", " sir"]) == ("why", "YES SIR")
