"""A grammar as the client writes it, and its translation to Lark for the library."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from llguidance import regex_to_lark

from specdecode_engine.grammar.gbnf import GbnfError, gbnf_to_lark
from specdecode_engine.grammar.json_schema import with_defaults
from specdecode_engine.grammar.lark import (
    describe_place,
    first_statement,
    is_gbnf,
    lark_literal,
    unavailable_attribute,
)
from specdecode_engine.grammar.nesting import MAX_DEPTH, lark_depth, schema_depth
from specdecode_engine.grammar.schemas import expressible
from specdecode_engine.grammar.schemas.numbers import unusable_number

MAX_SOURCE_CHARS = 256 * 2**10
CONTENT = "content"
"""Name of the grammar of the content."""

# Without it, a piece of text that the grammar forces is narrowed to the tokenizer's own way to cut
# it. A mask is every token that may follow; the model chooses among them.
_JSON_RULE = re.compile(r"%json\s*")
_ALL_TOKENS = '\n%llguidance {"no_forcing": true}\n'


class GrammarRefused(Exception):
    """The grammar is invalid or too large; the message names the position."""


class GrammarKind(StrEnum):
    """How a grammar is written."""

    JSON_SCHEMA = "json_schema"  # a JSON Schema
    REGEX = "regex"  # a regular expression for the whole answer
    EBNF = "ebnf"  # GBNF with a rule `root`, or Lark with a rule `start`
    CHOICE = "choice"  # a JSON list of strings
    MESSAGE = "message"  # a `MessageGrammar` as JSON: calls and reasoning around other grammars


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """The source text of a grammar.

    `is_strict` refuses a JSON Schema with keywords that cannot be enforced; otherwise they are
    ignored.
    """

    kind: GrammarKind
    text: str
    is_strict: bool = True

    def as_lark(self) -> Mapping[str, str]:
        """Translate to named Lark grammars, of which the first one starts.

        Raises `GrammarRefused`, also for what the library would crash on.
        """
        if len(self.text) > MAX_SOURCE_CHARS:
            raise GrammarRefused(
                f"it has {len(self.text)} characters; at most {MAX_SOURCE_CHARS} are taken"
            )
        if self.kind is GrammarKind.MESSAGE:
            message = MessageGrammar.from_source(self)
            named = {"message": message.translate() + _ALL_TOKENS}
            return {**named, **(message.content.as_lark() if message.content else {})}
        return {CONTENT: self._translate() + _ALL_TOKENS}

    def _translate(self) -> str:
        match self.kind:
            case GrammarKind.JSON_SCHEMA:
                return f"start: {_json_rule(_read_object(self.text), self.is_strict)}"
            case GrammarKind.REGEX:
                return f"start: /{regex_to_lark(self.text, '')}/"
            case GrammarKind.CHOICE:
                return "start: " + " | ".join(map(lark_literal, json.loads(self.text)))
            case GrammarKind.EBNF:
                lark = _ebnf_to_lark(self.text)
                _check_depth(lark_depth(lark), "the start rule", "rules that lead to other rules")
                return lark
            case GrammarKind.MESSAGE:
                raise AssertionError("a message consists of several grammars")


@dataclass(frozen=True, slots=True)
class NamedSchema:
    """A JSON Schema as the rule `name` of a message's grammar; `place` is its field."""

    name: str
    place: str
    schema: Mapping[str, object]
    is_strict: bool


@dataclass(frozen=True, slots=True)
class MessageGrammar:
    """The grammar of a whole message.

    `rules` are Lark with a rule `start`. They refer to schemas by their names, and to `content`, an
    object of its own, as `@content`.
    """

    rules: str
    schemas: tuple[NamedSchema, ...] = ()
    content: GrammarSource | None = None

    @classmethod
    def from_source(cls, source: GrammarSource) -> "MessageGrammar":
        """Read what `as_source` wrote."""
        fields = json.loads(source.text)
        content = fields["content"]
        return cls(
            fields["rules"],
            tuple(NamedSchema(*schema) for schema in fields["schemas"]),
            content and GrammarSource(GrammarKind(content[0]), *content[1:]),
        )

    def as_source(self) -> GrammarSource:
        content = self.content
        fields = {
            "rules": self.rules,
            "schemas": [
                (each.name, each.place, each.schema, each.is_strict) for each in self.schemas
            ],
            "content": content and (content.kind, content.text, content.is_strict),
        }
        return GrammarSource(GrammarKind.MESSAGE, json.dumps(fields, ensure_ascii=False))

    def translate(self) -> str:
        """Return the rules and the schemas as Lark; raises `GrammarRefused`."""
        lines = [self.rules]
        for each in self.schemas:
            try:
                lines.append(f"{each.name}: {_json_rule(each.schema, each.is_strict)}")
            except GrammarRefused as refusal:
                raise GrammarRefused(f"{each.place}: {refusal}") from None
        return "\n".join(lines)


def _json_rule(schema: Mapping[str, object], is_strict: bool) -> str:
    """Return the right side of a rule for the values of a schema."""
    _check_depth(schema_depth(schema), "$", "$ref, properties, items, anyOf …")
    _check_numbers(schema)
    schema = with_defaults(expressible(schema, is_strict), is_strict)
    return f"%json {json.dumps(schema, ensure_ascii=False)}"


def _check_numbers(schema: Mapping[str, object]) -> None:
    if (reason := unusable_number(schema)) is not None:
        raise GrammarRefused(reason)


def _check_depth(depth: int, place: str, parts: str) -> None:
    if depth > MAX_DEPTH:
        raise GrammarRefused(
            f"it nests {depth} levels deep from {place}, with references followed ({parts}); at "
            f"most {MAX_DEPTH} are allowed; shorten the chain of references or split the grammar"
        )


def _ebnf_to_lark(text: str) -> str:
    """Translate GBNF; return a Lark grammar as it is."""
    match is_gbnf(text):
        case True:
            try:
                return gbnf_to_lark(text)
            except GbnfError as error:
                raise GrammarRefused(str(error)) from None
        case None:
            place = describe_place(text, first_statement(text))
            raise GrammarRefused(
                f"{place}: expected a rule: `root ::= …` in GBNF, `start: …` in Lark"
            )
    if (reason := unavailable_attribute(text)) is not None:
        raise GrammarRefused(reason)
    for schema in _schemas_of_lark(text):
        _check_numbers(schema)
    return text


def _schemas_of_lark(text: str) -> Iterator[dict[str, object]]:
    """Yield the JSON Schemas after `%json`; what is malformed is left to the library."""
    for found in _JSON_RULE.finditer(text):
        try:
            schema, _ = json.JSONDecoder().raw_decode(text, found.end())
        except (ValueError, RecursionError):
            continue
        if isinstance(schema, dict):
            yield schema


def _read_object(text: str) -> dict[str, object]:
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise GrammarRefused(f"it is not valid JSON: {error}") from None
    except RecursionError:
        raise GrammarRefused("it is nested too deeply") from None
    if not isinstance(schema, dict):
        raise GrammarRefused("a schema is a JSON object")
    return schema
