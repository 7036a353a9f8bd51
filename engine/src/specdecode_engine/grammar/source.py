"""A grammar as the client writes it, and its translation to Lark for the library."""

import json
from dataclasses import dataclass
from enum import StrEnum

from llguidance import regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark

from specdecode_engine.grammar.json_schema import with_defaults
from specdecode_engine.grammar.nesting import MAX_DEPTH, lark_depth, schema_depth

MAX_SOURCE_CHARS = 256 * 2**10

# Without it, a piece of text that the grammar forces is narrowed to the tokenizer's own way to cut
# it. A mask is every token that may follow; the model chooses among them.
_ALL_TOKENS = '\n%llguidance {"no_forcing": true}\n'


class GrammarRefused(Exception):
    """The grammar is invalid or too large; the message names the position."""


class GrammarKind(StrEnum):
    """How a grammar is written."""

    JSON_SCHEMA = "json_schema"  # a JSON Schema
    REGEX = "regex"  # a regular expression for the whole answer
    EBNF = "ebnf"  # GBNF with a rule `root`, or Lark with a rule `start`
    CHOICE = "choice"  # a JSON list of strings


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """The source text of a grammar.

    `is_strict` refuses a JSON Schema with keywords that cannot be enforced; otherwise they are
    ignored.
    """

    kind: GrammarKind
    text: str
    is_strict: bool = True

    def as_lark(self) -> str:
        """Translate; raises `GrammarRefused`, also for what the library would crash on."""
        if len(self.text) > MAX_SOURCE_CHARS:
            raise GrammarRefused(
                f"it has {len(self.text)} characters; at most {MAX_SOURCE_CHARS} are taken"
            )
        return self._translate() + _ALL_TOKENS

    def _translate(self) -> str:
        match self.kind:
            case GrammarKind.JSON_SCHEMA:
                schema = with_defaults(_read_object(self.text), self.is_strict)
                _check_depth(schema_depth(schema), "$", "$ref, properties, items, anyOf …")
                return f"start: %json {json.dumps(schema, ensure_ascii=False)}"
            case GrammarKind.REGEX:
                return f"start: /{regex_to_lark(self.text, '')}/"
            case GrammarKind.CHOICE:
                choices = json.loads(self.text)
                return "start: " + " | ".join(json.dumps(c, ensure_ascii=False) for c in choices)
            case GrammarKind.EBNF:
                try:
                    lark = str(any_to_lark(self.text))
                except Exception as error:  # the converter raises plain exceptions
                    raise GrammarRefused(str(error)) from None
                _check_depth(lark_depth(lark), "the start rule", "rules that lead to other rules")
                return lark


def _check_depth(depth: int, place: str, parts: str) -> None:
    if depth > MAX_DEPTH:
        raise GrammarRefused(
            f"it nests {depth} levels deep from {place}, with references followed ({parts}); at "
            f"most {MAX_DEPTH} are allowed; shorten the chain of references or split the grammar"
        )


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
