"""Grammars of calls: every text that they allow has valid calls, as the parser reads them."""

import json
import random
from collections.abc import Iterable, Mapping
from typing import Any

import jsonschema
import numpy as np
import pytest

from specdecode_engine.grammar import (
    GrammarCompiler,
    GrammarFault,
    GrammarKind,
    GrammarRefused,
    GrammarSource,
    TokenBytes,
)
from specdecode_engine.serve.parsers.formats import MessageFormats
from specdecode_engine.serve.parsers.message import ParserContext
from specdecode_engine.serve.parsers.reasoning import REASONING_TAGS
from specdecode_engine.serve.parsers.tool_formats import TOOL_FORMATS
from specdecode_engine.serve.parsers.tool_grammar import (
    MessageConstraint,
    ReasoningSpan,
    ToolSchema,
    UnsupportedSchema,
    constrain,
)
from tests.engine.serve.parsers.samples import ParsedText, join

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Rome"]},
        "days": {"type": "integer", "minimum": 0},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 2},
        "note": {"type": "string"},
        "exact": {"type": ["boolean", "null"]},
    },
    "required": ["city", "exact"],
    "additionalProperties": False,
    "$defs": {"tag": {"type": "string", "maxLength": 3}},
}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = (
    ToolSchema("get_weather", PARAMETERS, True, "tools[0].function.parameters"),
    ToolSchema("now", NOTHING, True, "tools[1].function.parameters"),
)
SCHEMAS = {tool.name: tool.parameters for tool in TOOLS}
BYTES = [bytes([byte]) for byte in range(256)]
THINK = ReasoningSpan("<think>", "</think>", is_open=True)
FORMATS = sorted(TOOL_FORMATS)


class RandomModel:
    """A vocabulary of bytes and of a format's tokens, and a model that chooses at random.

    Args:
        has_special_tokens: the format's tokens are special; otherwise they are text.
        spellings: of further tokens.
    """

    def __init__(
        self, name: str, has_special_tokens: bool = True, spellings: Iterable[str] = ()
    ) -> None:
        spellings = sorted({*TOOL_FORMATS[name].special_tokens, *spellings})
        self.tokens = [*BYTES, *(each.encode() for each in spellings), b"<eos>"]
        self.eos = len(self.tokens) - 1
        ids = {spelling: len(BYTES) + index for index, spelling in enumerate(spellings)}
        self.special_ids: Mapping[str, int] = ids if has_special_tokens else {}
        eos, special = frozenset({self.eos}), frozenset(self.special_ids.values())
        self.compiler = GrammarCompiler(TokenBytes(self.tokens, special, eos))

    def write(self, source: GrammarSource, seed: int, begin: str = "") -> str | None:
        """Return a text that begins with some text; None if it did not end in time."""
        rng = random.Random(seed)
        matcher = self.compiler.compile(source).follow(self.encode(begin))
        words = np.zeros(self.compiler.num_words, dtype=np.int32)
        text = begin.encode()
        for _ in range(600):
            matcher.fill(words)
            bits = np.unpackbits(words.view(np.uint8), bitorder="little")
            allowed = np.flatnonzero(bits[: len(self.tokens)]).tolist()
            if self.eos in allowed and (len(allowed) == 1 or rng.random() < 0.2):
                return text.decode()
            allowed = [token for token in allowed if token != self.eos]
            closing = [t for t in allowed if t >= len(BYTES) or self.tokens[t] in b'"}]']
            wanted = closing if closing and rng.random() < 0.4 else allowed
            token = rng.choice(wanted)
            matcher.advance(token)
            text += self.tokens[token]
        return None

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, special tokens where it has any."""
        ids: list[int] = []
        while text:
            found = [(s, i) for s, i in self.special_ids.items() if text.startswith(s)]
            if found:
                ids.append(found[0][1])
                text = text[len(found[0][0]) :]
            else:
                ids += text[0].encode()
                text = text[1:]
        return ids


def read(name: str, text: str) -> ParsedText:
    parser = TOOL_FORMATS[name].make_parser(ParserContext(parameters=SCHEMAS))
    return join([*parser.push(text), *parser.flush()])


def assert_valid(parsed: ParsedText) -> None:
    for name, arguments in parsed.calls:
        jsonschema.validate(json.loads(arguments), SCHEMAS[name])


@pytest.fixture(scope="module", params=FORMATS)
def named_model(request) -> tuple[str, RandomModel]:
    return request.param, RandomModel(request.param)


@pytest.mark.parametrize("is_parallel", [True, False])
def test_required_calls_are_valid_calls(named_model, is_parallel) -> None:
    name, model = named_model
    wanted = MessageConstraint(name, None, TOOLS, is_required=True, is_parallel=is_parallel)
    source = constrain(wanted, model.special_ids)
    assert source is not None
    texts = [text for seed in range(8) if (text := model.write(source, seed)) is not None]
    assert texts
    for text in texts:
        parsed = read(name, text)
        assert parsed.calls
        assert parsed.content == ""
        assert is_parallel or len(parsed.calls) == 1
        assert_valid(parsed)


@pytest.mark.parametrize("name", sorted({*FORMATS} - {"openai"}))
def test_markers_may_be_plain_text(name) -> None:
    model = RandomModel(name, has_special_tokens=False)
    wanted = MessageConstraint(name, None, TOOLS, is_required=True)
    source = constrain(wanted, {})
    assert source is not None
    texts = [text for seed in range(8) if (text := model.write(source, seed)) is not None]
    assert texts
    for text in texts:
        assert read(name, text).calls
        assert_valid(read(name, text))


BEGINNINGS = {
    "apertus": "Hm <|tools_prefix|>",
    "cohere_command3": "<|START_ACTION|>",
    "cohere_command4": "<|START_ACTION|>",
    "deepseek_v3": "Hm <｜tool▁calls▁begin｜>",
    "deepseek_v31": "Hm <｜tool▁calls▁begin｜>",
    "deepseek_v32": "Hm <｜DSML｜function_calls>",
    "deepseek_v4": "Hm <｜DSML｜tool_calls>",
    "functiongemma": "Hm <start_function_call>",
    "gemma4": "Hm <|tool_call>",
    "glm45": "Hm <tool_call>",
    "glm47": "Hm <tool_call>",
    "granite": "Hm <tool_call>",
    "hermes": "Hm <tool_call>",
    "hunyuan_a13b": "Hm <tool_calls>",
    "hy_v3": "Hm <tool_calls>",
    "hy_v4": "Hm <tool_calls>",
    "internlm": "Hm <|action_start|>",
    "kimi_k2": "Hm <|tool_calls_section_begin|>",
    "lfm2": "Hm <|tool_call_start|>",
    "llama3_json": '{"name": "',
    "minimax_m2": "Hm <minimax:tool_call>",
    "mistral": "Hm [TOOL_CALLS]",
    "olmo3": "Hm <function_calls>",
    "openai": "<|channel|>commentary to=",
    "phi4_mini_json": "Hm functools[",
    "pythonic": "[get_weather(",
    "qwen3_coder": "Hm <tool_call>\n<function=",
    "seed_oss": "Hm <seed:tool_call>\n<function=",
}


def test_a_strict_call_that_begins_follows_its_schema(named_model) -> None:
    name, model = named_model
    source = constrain(MessageConstraint(name, None, TOOLS), model.special_ids)
    assert source is not None
    texts = [model.write(source, seed, BEGINNINGS[name]) for seed in range(8)]
    assert any(texts)
    for text in filter(None, texts):
        parsed = read(name, text)
        assert parsed.calls
        assert_valid(parsed)


@pytest.mark.parametrize("has_special_tokens", [True, False])
@pytest.mark.parametrize("begin", ["Hm <function=", "<tool_call>\n<function=", "a </function>"])
def test_a_strict_call_of_qwen3_coder_needs_no_tag_before_its_function(
    begin: str, has_special_tokens: bool
) -> None:
    model = RandomModel("qwen3_coder", has_special_tokens)
    source = constrain(MessageConstraint("qwen3_coder", None, TOOLS), model.special_ids)
    assert source is not None
    texts = [text for seed in range(6) if (text := model.write(source, seed, begin)) is not None]
    assert texts
    for text in texts:
        parsed = read("qwen3_coder", text)
        assert bool(parsed.calls) == ("<function=" in text)
        assert_valid(parsed)


@pytest.mark.parametrize("has_special_tokens", [True, False])
@pytest.mark.parametrize(
    ("name", "begin"),
    [
        ("granite", "Hm <|tool_call|>"),
        ("granite", "Hm <tool_call>["),
        ("phi4_mini_json", "Hm <|tool_call|>"),
        ("phi4_mini_json", "Hm functools["),
    ],
)
def test_a_strict_call_may_begin_with_each_marker(name, begin, has_special_tokens) -> None:
    model = RandomModel(name, has_special_tokens)
    source = constrain(MessageConstraint(name, None, TOOLS), model.special_ids)
    assert source is not None
    texts = [model.write(source, seed, begin) for seed in range(6)]
    assert any(texts)
    for text in filter(None, texts):
        assert read(name, text).calls
        assert_valid(read(name, text))


def test_text_without_a_call_is_free_with_strict_tools(named_model) -> None:
    name, model = named_model
    source = constrain(MessageConstraint(name, None, TOOLS), model.special_ids)
    assert source is not None
    begin = "<|channel|>final<|message|>" if name == "openai" else ""
    text = begin + "The weather is {fine} [1] (really)."
    matcher = model.compiler.compile(source).follow(model.encode(text))
    words = np.zeros(model.compiler.num_words, dtype=np.int32)
    matcher.fill(words)
    assert int(words[model.eos // 32]) >> model.eos % 32 & 1


@pytest.mark.parametrize("has_special_tokens", [True, False])
def test_one_call_at_most_follows_from_parallel_tool_calls_false(has_special_tokens) -> None:
    model = RandomModel("hermes", has_special_tokens)
    wanted = MessageConstraint("hermes", None, TOOLS, is_parallel=False)
    source = constrain(wanted, model.special_ids)
    assert source is not None
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    text = model.write(source, 3, call)
    assert text is None or len(read("hermes", text).calls) == 1
    with pytest.raises(GrammarFault):
        model.compiler.compile(source).follow(model.encode(call + call))


def test_content_follows_its_grammar_after_the_reasoning() -> None:
    model = RandomModel("hermes")
    content = GrammarSource(GrammarKind.REGEX, "(yes|no)!")
    for span, begin in ((THINK, "so. </think>\n\n"), (THINK, "x</think>")):
        source = constrain(MessageConstraint(None, span, content=content), {})
        assert source is not None
        text = model.write(source, 1, begin)
        assert text is not None
        assert text.removeprefix(begin).lstrip("\n") in ("yes!", "no!")
    closed = ReasoningSpan("<think>", "</think>", is_open=False)
    source = constrain(MessageConstraint(None, closed, content=content), {})
    assert source is not None
    assert model.write(source, 2, "yes") == "yes!"
    assert str(model.write(source, 2, "<think>a</think>")).endswith(("yes!", "no!"))


@pytest.mark.parametrize("has_special_tokens", [True, False])
@pytest.mark.parametrize(("tools", "begin"), [((), "t"), ((), "<response>\nt"), (TOOLS, "t")])
def test_content_follows_its_grammar_between_the_tags_of_an_answer(
    begin, tools, has_special_tokens
) -> None:
    tags = REASONING_TAGS["ernie45"]
    assert tags.answer is not None
    span = ReasoningSpan(tags.start, tags.end, is_open=True, answer=tags.answer)
    model = RandomModel("hermes", has_special_tokens, spellings=(*tags.answer, tags.end))
    content = GrammarSource(GrammarKind.JSON_SCHEMA, '{"type": "boolean"}')
    wanted = MessageConstraint("hermes", span, tools, content=content)
    source = constrain(wanted, model.special_ids)
    assert source is not None
    text = model.write(source, 0, f"so.</think>\n\n{begin}")
    parser = MessageFormats(tags).make_parser(ParserContext(in_reasoning=True))
    assert join([*parser.push(str(text)), *parser.flush()]).content == "true"


def test_free_text_has_the_tags_of_an_answer_with_strict_tools() -> None:
    tags = REASONING_TAGS["ernie45"]
    span = ReasoningSpan(tags.start, tags.end, is_open=False, answer=tags.answer)
    model = RandomModel("hermes", spellings=tags.answer or ())
    source = constrain(MessageConstraint("hermes", span, TOOLS), model.special_ids)
    assert source is not None
    text = model.write(source, 1, "<response>\nIt is {fine}.\n</response>")
    assert text is not None
    assert "<tool_call>" not in text


def test_harmony_content_follows_its_grammar_in_the_final_channel() -> None:
    model = RandomModel("openai")
    content = GrammarSource(GrammarKind.JSON_SCHEMA, '{"type": "boolean"}')
    source = constrain(MessageConstraint("openai", content=content), model.special_ids)
    assert source is not None
    begin = "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>"
    assert read("openai", str(model.write(source, 0, begin))).content in ("true", "false")


@pytest.mark.parametrize("has_special_tokens", [True, False])
@pytest.mark.parametrize("tools", [(), TOOLS])
@pytest.mark.parametrize(
    ("name", "begin"),
    [
        ("cohere_command3", "<|START_RESPONSE|>"),
        ("cohere_command3", ""),
        ("cohere_command4", "<|START_TEXT|>"),
    ],
)
def test_content_follows_its_grammar_between_the_markers_around_it(
    name, begin, tools, has_special_tokens
) -> None:
    model = RandomModel(name, has_special_tokens)
    content = GrammarSource(GrammarKind.JSON_SCHEMA, '{"type": "boolean"}')
    source = constrain(MessageConstraint(name, None, tools, content=content), model.special_ids)
    assert source is not None
    text = model.write(source, 0, begin + "t")
    assert read(name, str(text)).content == "true"


def test_calls_or_constrained_content() -> None:
    model = RandomModel("hermes")
    content = GrammarSource(GrammarKind.CHOICE, '["yes"]')
    source = constrain(MessageConstraint("hermes", None, TOOLS, content=content), model.special_ids)
    assert source is not None
    assert model.write(source, 0, "y") == "yes"
    assert read("hermes", model.write(source, 1, "<tool_call>") or "<tool_call>").calls


NESTED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "tree": {"$ref": "#/$defs/node"},
        "either": {"anyOf": [{"type": "integer", "minimum": 5, "maximum": 7}, {"const": "no"}]},
        "pair": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
        "word": {"type": "string", "minLength": 2, "maxLength": 4},
        "counts": {"type": "object", "additionalProperties": {"enum": [1, None, "a:b"]}},
        "any": {},
        "items": {"type": "array", "maxItems": 0},
    },
    "required": ["tree", "either", "pair", "word", "counts", "any", "items"],
    "additionalProperties": False,
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
            "required": ["next"],
            "additionalProperties": False,
        }
    },
}


@pytest.mark.parametrize("has_special_tokens", [True, False])
def test_nested_schemas_are_followed_in_the_notation_of_gemma(has_special_tokens) -> None:
    model = RandomModel("gemma4", has_special_tokens)
    tools = (ToolSchema("f", NESTED, True, "tools[0].function.parameters"),)
    wanted = MessageConstraint("gemma4", None, tools, is_required=True, is_parallel=False)
    source = constrain(wanted, model.special_ids)
    assert source is not None
    texts = [text for seed in range(40) if (text := model.write(source, seed)) is not None]
    assert texts
    for text in texts:
        parser = TOOL_FORMATS["gemma4"].make_parser(ParserContext(parameters={"f": NESTED}))
        ((_, arguments),) = join([*parser.push(text), *parser.flush()]).calls
        jsonschema.validate(json.loads(arguments), NESTED)


def test_without_demands_there_is_no_grammar() -> None:
    tool = ToolSchema("now", NOTHING, False, "tools[0].function.parameters")
    assert constrain(MessageConstraint("hermes", THINK, (tool,)), {}) is None
    content = GrammarSource(GrammarKind.REGEX, "a")
    assert constrain(MessageConstraint("hermes", None, content=content), {}) is content


DEEP: dict[str, Any] = {}
for _ in range(5000):
    DEEP = {"items": DEEP}


def test_the_part_of_a_schema_that_is_refused_is_named() -> None:
    wrong = {"type": "object", "properties": {"a": {"type": "strin"}}}
    tools = (TOOLS[1], ToolSchema("f", wrong, True, "tools[1].function.parameters"))
    source = constrain(MessageConstraint("hermes", None, tools, is_required=True), {})
    assert source is not None
    with pytest.raises(GrammarRefused, match=r"tools\[1\].function.parameters: at \$.properties.a"):
        RandomModel("hermes").compiler.compile(source)


@pytest.mark.parametrize(
    ("name", "parameters", "words"),
    [
        ("pythonic", {"type": "object", "minProperties": 1}, "minProperties"),
        ("pythonic", {"type": "object", "properties": {"a-b": {}}}, "a-b is not a name"),
        ("glm45", {"properties": {"a": {"type": "string", "pattern": "x"}}}, "a: pattern"),
        ("glm45", {"type": "array"}, "type is array; arguments are an object"),
        ("qwen3_coder", {"properties": {"a>b": {}}}, "a>b is not a name in this model's format"),
        ("minimax_m2", {"properties": {'a"b': {}}}, 'a"b is not a name in this model'),
        ("gemma4", {"properties": {"a:b": {}}}, "a:b is not a name in this model"),
        ("gemma4", {"properties": {"a": {"type": "string", "pattern": "x"}}}, "a: pattern"),
        ("gemma4", {"properties": {"a": {"type": "strin"}}}, "a: type is strin"),
        ("gemma4", {"properties": {"a": {"$ref": "#/$defs/b"}}}, "a: \\$ref is #/\\$defs/b"),
        ("gemma4", {"properties": {"a": {"minItems": 2, "maxItems": 1, "type": "array"}}}, "raise"),
        ("gemma4", {"properties": {"a": {"enum": ['<|"|>']}}}, "a value contains"),
        ("gemma4", {"properties": {"a": {"enum": [[1]]}}}, "among its values"),
        ("gemma4", {"properties": {"a": DEEP}}, "nested deeper than 32 levels"),
        ("hermes", {"type": ["string"]}, r"type is \['string'\]; arguments are an object"),
        (
            "pythonic",
            {"properties": {f"a{n}": {} for n in range(300)}, "$defs": {"long": ["x" * 2000]}},
            "a copy of",
        ),
    ],
)
def test_what_a_format_cannot_enforce_is_refused_by_name(name, parameters, words) -> None:
    tools = (ToolSchema("f", parameters, True, "tools[0].function.parameters"),)
    with pytest.raises(UnsupportedSchema, match=words):
        constrain(MessageConstraint(name, None, tools, is_required=True), {})
