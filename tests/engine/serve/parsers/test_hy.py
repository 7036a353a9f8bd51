"""Tags of Hy3 and Hy4 with the suffix that a vocabulary shows."""

import pytest

from specdecode_api.boot import ServerBoot
from specdecode_engine.serve.parsers.formats import MessageFormats, resolve_formats
from specdecode_engine.serve.parsers.hy import find_suffix, suffixed
from specdecode_engine.serve.parsers.message import ParserContext
from specdecode_engine.serve.parsers.reasoning import REASONING_TAGS
from specdecode_engine.serve.parsers.tool_formats import TOOL_FORMATS
from specdecode_engine.serve.parsers.tool_grammar import MessageConstraint, constrain
from tests.engine.serve.parsers.samples import CASES, TOOLS, ParsedText, join
from tests.engine.serve.parsers.test_tool_formats import TEMPLATES
from tests.engine.serve.parsers.test_tool_grammar import (
    SCHEMAS,
    RandomModel,
    assert_valid,
)
from tests.engine.serve.parsers.test_tool_grammar import TOOLS as SCHEMA_TOOLS

SUFFIX = ":opensource"
NAMES = ("hy_v3", "hy_v4")
TAGS = sorted({*TOOL_FORMATS["hy_v3"].special_tokens, "<think>", "</think>"})


def formats_of(name: str) -> MessageFormats:
    tokens = [suffixed(tag, SUFFIX) for tag in TAGS]
    return resolve_formats(TEMPLATES[name], ServerBoot(), tokens)


def read(formats: MessageFormats, text: str, parameters=TOOLS) -> ParsedText:
    parser = formats.make_parser(ParserContext(parameters=parameters))
    return join([*parser.push(text), *parser.flush()])


def with_suffix(text: str) -> str:
    for tag in TAGS:
        text = text.replace(tag, suffixed(tag, SUFFIX))
    return text


def test_the_suffix_is_that_of_any_tag_in_the_vocabulary() -> None:
    assert find_suffix(["<s>", "<think:6124c78e>", "</think:6124c78e>"]) == ":6124c78e"
    assert find_suffix(["<think>", "<tool_call>", "<arg_key:a b>", "x<arg_key:a>"]) == ""


@pytest.mark.parametrize("name", NAMES)
def test_tags_without_suffix_are_those_of_the_family(name: str) -> None:
    formats = resolve_formats(TEMPLATES[name], ServerBoot(), TAGS)
    assert formats == MessageFormats(REASONING_TAGS["hy_v3"], TOOL_FORMATS[name])


@pytest.mark.parametrize("name", NAMES)
def test_calls_and_reasoning_are_read_with_the_suffix(name: str) -> None:
    formats = formats_of(name)
    plain = MessageFormats(REASONING_TAGS["hy_v3"], TOOL_FORMATS[name])
    texts = [case["text"] for other, case in CASES if other == name and case["calls"]]
    assert texts
    for text in texts:
        message = f"<think>why</think>{text}"
        assert read(formats, with_suffix(message)) == read(plain, message)
        assert read(formats, message).calls == ()


@pytest.mark.parametrize("name", NAMES)
def test_required_calls_have_the_suffix_of_the_vocabulary(name: str) -> None:
    formats = formats_of(name)
    assert formats.tools is not None
    model = RandomModel(name, spellings=formats.tools.special_tokens)
    ids = {key: token for key, token in model.special_ids.items() if SUFFIX in key}
    source = constrain(MessageConstraint(name, None, SCHEMA_TOOLS, is_required=True), ids)
    assert source is not None
    texts = [text for seed in range(6) if (text := model.write(source, seed)) is not None]
    assert texts
    for text in texts:
        parsed = read(formats, text, SCHEMAS)
        assert parsed.calls
        assert parsed.content == ""
        assert_valid(parsed)
