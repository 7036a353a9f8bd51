"""Grammars that answers are held to, and checks of what they allow, by other means.

Each kind, some that end soon and some that need not end; calls of tools in every format; and
content after reasoning.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema

from specdecode_engine.grammar import Grammar, GrammarCompiler, GrammarKind, GrammarSource
from specdecode_engine.serve.parsers.message import ParserContext, ToolCallDelta
from specdecode_engine.serve.parsers.tool_formats import TOOL_FORMATS
from specdecode_engine.serve.parsers.tool_grammar import (
    MessageConstraint,
    ReasoningSpan,
    ToolSchema,
    constrain,
)
from specdecode_engine.serve.text.loading import load_text_model
from specdecode_engine.serve.text.tokenizer import Vocabulary

IsValid = Callable[[str], bool]

_ANIMAL: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "legs": {"type": "integer", "minimum": 0, "maximum": 8},
        "tags": {"type": "array", "items": {"enum": ["big", "small"]}, "maxItems": 2},
    },
    "required": ["name", "legs"],
    "additionalProperties": False,
}
_TOOLS: dict[str, dict[str, Any]] = {
    "see": {
        "type": "object",
        "properties": {
            "what": {"type": "string", "enum": ["cat", "dog"]},
            "often": {"type": "boolean"},
        },
        "required": ["often"],
        "additionalProperties": False,
    },
    "now": {"type": "object", "properties": {}, "additionalProperties": False},
}
_THINK = ReasoningSpan("<think>", "</think>", is_open=False)


@dataclass(frozen=True, slots=True)
class ConstrainedOutput:
    """A grammar, and whether a whole text is what was demanded."""

    source: GrammarSource
    is_valid: IsValid


def _fits(schema: dict[str, Any]) -> IsValid:
    def is_valid(text: str) -> bool:
        try:
            jsonschema.validate(json.loads(text), schema)
        except (ValueError, jsonschema.ValidationError):
            return False
        return True

    return is_valid


def _words(most: int, chars: int) -> dict[str, Any]:
    """A text of counted words."""
    counted = rf"^(?:\S+\s+){{0,{most - 1}}}\S+$"
    return {"type": "string", "maxLength": chars, "pattern": counted}


def _record(*fields: dict[str, Any]) -> dict[str, Any]:
    names = [f"f{number}" for number in range(len(fields))]
    return {
        "type": "object",
        "properties": dict(zip(names, fields, strict=True)),
        "required": names,
        "additionalProperties": False,
    }


def _matches(pattern: str) -> IsValid:
    return lambda text: re.fullmatch(pattern, text) is not None


def _is_list(text: str) -> bool:
    return text.count("(") == text.count(")") and bool(re.fullmatch(r"[a-z(),]+", text))


def _schema(schema: dict[str, Any]) -> ConstrainedOutput:
    source = GrammarSource(GrammarKind.JSON_SCHEMA, json.dumps(schema))
    return ConstrainedOutput(source, _fits(schema))


def _regex(pattern: str) -> ConstrainedOutput:
    return ConstrainedOutput(GrammarSource(GrammarKind.REGEX, pattern), _matches(pattern))


_LIST = 'root ::= item ("," item)*\nitem ::= [a-z]+ | "(" root ")"'
_PLAIN = (
    _schema(_ANIMAL),
    _schema({"type": "object"}),
    _regex(r"[A-Z][a-z]{1,9}( [a-z]{2,6}){0,4}\."),
    _regex(r"[^aeiou]*"),
    ConstrainedOutput(GrammarSource(GrammarKind.EBNF, _LIST), _is_list),
    ConstrainedOutput(
        GrammarSource(GrammarKind.CHOICE, '["yes", "no", "not at all"]'),
        _matches("yes|no|not at all"),
    ),
)


def _text(chars: int) -> dict[str, Any]:
    return {"type": "string", "maxLength": chars}


_NESTED = {"type": "array", "items": {"type": "array", "items": _text(300), "maxItems": 4}}
LONG_OUTPUTS = tuple(
    _schema(_record(*fields))
    for fields in (
        (_text(200), _text(2000)),
        (_words(20, 200), _words(20, 200)),
        (_words(50, 500),) * 4,
        (_words(100, 1000), _text(1000)),
        (_words(200, 2000),),
        (_NESTED, {"type": "array", "items": _words(30, 400)}),
    )
)
"""Long texts, counters of words and nested arrays: more work than the library does at a time."""


def _calls(name: str, is_parallel: bool) -> ConstrainedOutput:
    """Required calls in a format, whose markers are text in this vocabulary."""
    tools = tuple(ToolSchema(tool, schema, True, tool) for tool, schema in _TOOLS.items())
    source = constrain(MessageConstraint(name, None, tools, True, is_parallel), {})
    assert source is not None

    def is_valid(text: str) -> bool:
        parser = TOOL_FORMATS[name].make_parser(ParserContext(parameters=_TOOLS))
        deltas = [*parser.push(text), *parser.flush()]
        calls = [delta for delta in deltas if isinstance(delta, ToolCallDelta)]
        names = [call.name for call in calls if call.name is not None]
        arguments = ["" for _ in names]
        for call in calls:
            arguments[call.index] += call.arguments
        fit = (_fits(_TOOLS[n])(text) for n, text in zip(names, arguments, strict=True))
        return bool(names) and all(fit) and (is_parallel or len(names) == 1)

    return ConstrainedOutput(source, is_valid)


def _after_reasoning(inner: ConstrainedOutput) -> ConstrainedOutput:
    source = constrain(MessageConstraint(None, _THINK, content=inner.source), {})
    assert source is not None

    def is_valid(text: str) -> bool:
        _, end, rest = text.partition(_THINK.end)
        if text.startswith(_THINK.start):
            return bool(end) and any(inner.is_valid(rest[n:]) for n in range(3))
        return inner.is_valid(text)

    return ConstrainedOutput(source, is_valid)


# Markers of harmony are special tokens, without which its reasoning could contain any of them.
_FORMATS = sorted(set(TOOL_FORMATS) - {"openai"})
CONSTRAINED_OUTPUTS = (
    *_PLAIN,
    *(_calls(name, is_parallel) for name in _FORMATS for is_parallel in (True, False)),
    _after_reasoning(_PLAIN[0]),
    _after_reasoning(_PLAIN[-1]),
)


class Constraints:
    """The grammars compiled for a checkpoint, and the check of texts under them."""

    def __init__(self, target: Path, eos_ids: frozenset[int]) -> None:
        text = load_text_model(target)
        compiler = GrammarCompiler(text.token_bytes(eos_ids))
        self.grammars = _compile(compiler, CONSTRAINED_OUTPUTS)
        self.long_grammars = _compile(compiler, LONG_OUTPUTS)
        outputs = (*CONSTRAINED_OUTPUTS, *LONG_OUTPUTS)
        self._checks = {each.source: each.is_valid for each in outputs}
        self._vocabulary: Vocabulary = text.vocabulary
        self._eos_ids = eos_ids

    def is_valid(self, grammar: Grammar, token_ids: list[int]) -> bool | None:
        """Whether an answer is what its grammar demands; None for one that did not end itself."""
        if not token_ids or token_ids[-1] not in self._eos_ids:
            return None
        spellings = map(self._vocabulary.text_bytes, token_ids[:-1])
        return self._checks[grammar.source](b"".join(spellings).decode())


def _compile(
    compiler: GrammarCompiler, outputs: tuple[ConstrainedOutput, ...]
) -> tuple[Grammar, ...]:
    return tuple(compiler.compile(each.source) for each in outputs)
