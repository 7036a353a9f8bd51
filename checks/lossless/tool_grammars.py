"""Random tools, the grammar of required calls of them in a format, and the check of a text."""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jsonschema

from specdecode_engine.grammar import Grammar, GrammarCompiler, GrammarSource, TokenBytes
from specdecode_engine.serve.parsers.message import ContentDelta, ParserContext, ToolCallDelta
from specdecode_engine.serve.parsers.tool_formats import TOOL_FORMATS
from specdecode_engine.serve.parsers.tool_grammar import (
    MessageConstraint,
    ToolSchema,
    UnsupportedSchema,
    constrain,
)

HARMONY = "openai"
_NAMES = ("see", "now", "get_weather", "book2", "f")
_KEYS = ("what", "often", "days", "tags", "place", "where_to")
_WORDS = ("cat", "dog", "a b", "ß", "1", "true", "")
COMPACT = {"x-guidance": {"whitespace_flexible": False}}
Schema = dict[str, Any]


def draw_tools(rng: random.Random) -> dict[str, Schema]:
    """Draw up to three tools: their parameters by name."""
    return {name: _draw_object(rng, 0) for name in rng.sample(_NAMES, rng.randint(1, 3))}


def _draw_object(rng: random.Random, depth: int) -> Schema:
    keys = rng.sample(_KEYS, rng.randint(0, 4 - 2 * depth))
    return {
        "type": "object",
        "properties": {key: _draw_value(rng, depth) for key in keys},
        "required": [key for key in keys if rng.random() < 0.6],
        "additionalProperties": False,
    }


def _draw_value(rng: random.Random, depth: int) -> Schema:
    """Draw values of few tokens, so that calls end."""
    words = rng.sample(_WORDS, rng.randint(1, 3))
    kinds: tuple[Schema, ...] = (
        {"type": "string", "enum": words},
        {"type": "integer", "minimum": rng.randint(-5, 0), "maximum": rng.randint(1, 500)},
        {"type": "boolean"},
        {"type": ["boolean", "null"]},
        {"type": "array", "items": {"enum": words}, "maxItems": 2},
        {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"const": words[0]}]},
    )
    if depth == 0 and rng.random() < 0.15:
        return _draw_object(rng, depth + 1)
    return rng.choice(kinds)


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """Required calls of tools in a format.

    Attributes:
        tokens: the vocabulary.
        markers: those of the format in place of the last tokens, if they are special.
    """

    name: str
    tools: Mapping[str, Schema]
    is_parallel: bool
    tokens: TokenBytes
    markers: Mapping[str, int]
    grammar: Grammar

    @property
    def ends(self) -> frozenset[int]:
        """The markers that are special tokens, and the ends of a text."""
        return self.tokens.eos_ids | frozenset(self.markers.values())

    def text(self, token_ids: list[int]) -> str | None:
        """Return the text of an answer; None for one that did not end itself."""
        if not token_ids or token_ids[-1] not in self.tokens.eos_ids:
            return None
        return b"".join(self.tokens.spellings[token] for token in token_ids[:-1]).decode()

    def error(self, text: str) -> str | None:
        """Return what is wrong with the calls of a text; None if they are valid."""
        parser = TOOL_FORMATS[self.name].make_parser(ParserContext(parameters=self.tools))
        deltas = [*parser.push(text), *parser.flush()]
        if any(isinstance(delta, ContentDelta) for delta in deltas):
            return "there is content"
        calls = [delta for delta in deltas if isinstance(delta, ToolCallDelta)]
        names = [call.name for call in calls if call.name is not None]
        if not names or (len(names) > 1 and not self.is_parallel):
            return f"{len(names)} calls"
        arguments = ["" for _ in names]
        for call in calls:
            arguments[call.index] += call.arguments
        pairs = zip(names, arguments, strict=True)
        return next((error for pair in pairs if (error := self._call_error(*pair))), None)

    def _call_error(self, name: str, arguments: str) -> str | None:
        if name not in self.tools:
            return f"{name} is not a tool"
        try:
            jsonschema.validate(json.loads(arguments), self.tools[name])
        except (ValueError, jsonschema.ValidationError) as error:
            return f"{name}: {error}"
        return None


def draw_calls(rng: random.Random, name: str, vocabulary: TokenBytes) -> ToolCalls:
    """Draw tools and compile their grammar.

    The markers of the format are special tokens in two thirds of the cases, and always those of
    harmony, without which its reasoning could contain any of them.
    """
    tools = draw_tools(rng)
    is_parallel = rng.random() < 0.5
    is_special = rng.random() < 2 / 3 or name == HARMONY
    markers = sorted(TOOL_FORMATS[name].special_tokens) if is_special else []
    tokens = with_markers(vocabulary, markers)
    first = len(tokens.spellings) - len(markers)
    ids = {marker: first + index for index, marker in enumerate(markers)}
    grammar = GrammarCompiler(tokens).compile(_source(name, tools, is_parallel, ids))
    return ToolCalls(name, tools, is_parallel, tokens, ids, grammar)


def _source(
    name: str, tools: Mapping[str, Schema], is_parallel: bool, ids: Mapping[str, int]
) -> GrammarSource:
    """Require calls; where arguments are JSON, without white space that could go on for ever."""

    def required(more: Schema) -> GrammarSource | None:
        schemas = tuple(ToolSchema(tool, {**s, **more}, True, tool) for tool, s in tools.items())
        wanted = MessageConstraint(name, None, schemas, is_required=True, is_parallel=is_parallel)
        return constrain(wanted, ids)

    try:
        source = required(COMPACT)
    except UnsupportedSchema:
        source = required({})
    assert source is not None
    return source


def with_markers(tokens: TokenBytes, markers: list[str]) -> TokenBytes:
    """Return a vocabulary whose last tokens are markers, as special tokens."""
    first = len(tokens.spellings) - len(markers)
    own = frozenset(range(first, len(tokens.spellings)))
    assert not own & tokens.eos_ids, "the end of the text is among the last tokens"
    spellings = [*tokens.spellings[:first], *(marker.encode() for marker in markers)]
    return TokenBytes(spellings, tokens.special_ids | own, tokens.eos_ids)
