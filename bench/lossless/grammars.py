"""Grammars that answers are held to: each kind, some that end soon and some that need not end."""

import json
from pathlib import Path

from specdecode_engine.grammar import Grammar, GrammarCompiler, GrammarKind, GrammarSource
from specdecode_engine.serve.text.loading import load_text_model

_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "legs": {"type": "integer", "minimum": 0, "maximum": 8},
        "tags": {"type": "array", "items": {"enum": ["big", "small"]}, "maxItems": 2},
    },
    "required": ["name", "legs"],
    "additionalProperties": False,
}
_SOURCES = (
    GrammarSource(GrammarKind.JSON_SCHEMA, json.dumps(_SCHEMA)),
    GrammarSource(GrammarKind.JSON_SCHEMA, '{"type": "object"}'),
    GrammarSource(GrammarKind.REGEX, r"[A-Z][a-z]{1,9}( [a-z]{2,6}){0,4}\."),
    GrammarSource(GrammarKind.REGEX, r"[^aeiou]*"),
    GrammarSource(GrammarKind.EBNF, 'root ::= item ("," item)*\nitem ::= [a-z]+ | "(" root ")"'),
    GrammarSource(GrammarKind.CHOICE, '["yes", "no", "not at all"]'),
)


def load_grammars(target: Path, eos_ids: frozenset[int]) -> tuple[Grammar, ...]:
    """Compile them for a checkpoint's tokenizer."""
    compiler = GrammarCompiler(load_text_model(target).token_bytes(eos_ids))
    return tuple(compiler.compile(source) for source in _SOURCES)
