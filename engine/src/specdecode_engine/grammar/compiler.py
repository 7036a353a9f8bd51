"""Compiles the source of a grammar for a vocabulary, within limits of size and work."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from specdecode_engine.grammar.json_schema import JsonSchema, find_fault, with_defaults
from specdecode_engine.grammar.matcher import Grammar, GrammarFault
from specdecode_engine.grammar.source import GrammarKind, GrammarRefused, GrammarSource

MAX_LINES = 8
MAX_LINE_CHARS = 160

# The library's own limits bound a step to some 15 ms and a grammar to 500 000 symbols. A state of
# the lexer takes 1 to 2 kB; its own 250 000 of them would be half a gigabyte for one request.
_MAX_LEXER_STATES = 50_000


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """The bytes that every token id adds to the text, as in the server's detokenizer."""

    spellings: Sequence[bytes]
    special_ids: frozenset[int]
    eos_ids: frozenset[int]


class _Vocabulary:
    """A vocabulary in the form that the library reads."""

    def __init__(self, tokens: TokenBytes) -> None:
        self.tokens = list(tokens.spellings)
        self.special_token_ids = sorted(tokens.special_ids | tokens.eos_ids)
        self.eos_token_id = min(tokens.eos_ids)
        self.bos_token_id = None

    def __call__(self, text: bytes | str) -> list[int]:
        raise NotImplementedError("masks hold every token that may follow; no text is ever cut")


class GrammarCompiler:
    """Compiles grammars for one vocabulary; to make one takes about a second per 100 000 tokens.

    Safe in any thread; those that compile need `nesting.STACK_BYTES` of stack.
    """

    def __init__(self, tokens: TokenBytes) -> None:
        if not tokens.eos_ids:
            raise GrammarRefused(
                "this model's config names no eos_token_id, and an answer has to end with one"
            )
        self._eos_ids = tokens.eos_ids
        self._limits = LLParserLimits(max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False)
        wrapper = TokenizerWrapper(_Vocabulary(tokens))
        self._tokenizer = LLTokenizer(wrapper, eos_token=sorted(tokens.eos_ids))

    def compile(self, source: GrammarSource) -> Grammar:
        """Return the grammar, or raise `GrammarRefused`."""
        lark = LLMatcher.grammar_from_lark(source.as_lark())
        state = LLMatcher(self._tokenizer, lark, log_level=0, limits=self._limits)
        if state.is_error():
            raise GrammarRefused(self._explain(source, state.get_error()))
        grammar = Grammar(source, self._eos_ids, state)
        try:
            words = -(-self._tokenizer.vocab_size // 32)
            grammar.follow(()).fill(np.zeros(words, dtype=np.int32))
        except GrammarFault as fault:
            raise GrammarRefused(f"it is too complex, or nothing matches it: {fault}") from None
        return grammar

    def _explain(self, source: GrammarSource, message: str) -> str:
        shown = _own_words(source.kind, message)
        if source.kind is GrammarKind.JSON_SCHEMA:
            schema = with_defaults(json.loads(source.text), source.is_strict)
            if (fault := find_fault(schema, self._refuse)) is not None:
                shown = f"at {fault[0]}: {fault[1]}"
        lines = [line[:MAX_LINE_CHARS] for line in shown.strip().splitlines()]
        return "\n".join(lines[:MAX_LINES])

    def _refuse(self, schema: JsonSchema) -> str | None:
        grammar = LLMatcher.grammar_from_json_schema(dict(schema))
        validate = LLMatcher.validate_grammar_with_warnings
        is_wrong, messages = validate(grammar, self._tokenizer, limits=self._limits)
        return messages[0].strip() if is_wrong else None


def _own_words(kind: GrammarKind, message: str) -> str:
    """Drop from a message what the client did not write."""
    shown = message.partition("%llguidance")[0]
    if kind is GrammarKind.EBNF:
        return shown.rpartition("\n")[0] or message
    reason = shown.partition("(in regex): ")[2] or shown
    return reason.partition("\n   1 |")[0]
