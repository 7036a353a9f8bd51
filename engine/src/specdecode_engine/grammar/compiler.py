"""Compiles the source of a grammar for a vocabulary, within limits of size and work."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from specdecode_engine.grammar.json_schema import JsonSchema, find_fault, with_defaults
from specdecode_engine.grammar.lark import explain_gbnf, explain_lark, is_gbnf
from specdecode_engine.grammar.matcher import Grammar, GrammarFault
from specdecode_engine.grammar.nesting import run_with_deep_stack
from specdecode_engine.grammar.schemas import KNOWN_FORMATS, expressible
from specdecode_engine.grammar.source import (
    GrammarKind,
    GrammarRefused,
    GrammarSource,
    MessageGrammar,
)

MAX_LINES = 8
MAX_LINE_CHARS = 160

# Every mask is bounded, to some 15 ms, by its Earley items and the fuel of its lexer. All but lexer
# states are the library's defaults, named here so that an upgrade cannot change them. A state takes
# 1 to 2 kB; the default of 250 000 would be half a gigabyte for one request.
_LIMITS = LLParserLimits(
    max_items_in_row=2000,
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_lexer_states=50_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """The bytes that every token id adds to the text, as in the server's detokenizer."""

    spellings: Sequence[bytes]
    special_ids: frozenset[int]
    eos_ids: frozenset[int]

    @property
    def refusal(self) -> str | None:
        """Why every grammar is refused for this vocabulary, if it is."""
        if self.eos_ids:
            return None
        return (
            "neither config.json, generation_config.json, the tokenizer nor the chat template of "
            "this model names a token that ends an answer (EOS), and a constrained answer has to "
            "end with one; add eos_token_id to generation_config.json"
        )


@dataclass(frozen=True, slots=True)
class TranslatedGrammar:
    """A grammar that passed its trial: its source, and its translation for the library."""

    source: GrammarSource
    text: str


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
        if tokens.refusal is not None:
            raise GrammarRefused(tokens.refusal)
        self._eos_ids = tokens.eos_ids
        wrapper = TokenizerWrapper(_Vocabulary(tokens))
        self._tokenizer = LLTokenizer(wrapper, eos_token=sorted(tokens.eos_ids))

    @property
    def num_words(self) -> int:
        """Words of a mask."""
        return -(-self._tokenizer.vocab_size // 32)

    def compile(self, source: GrammarSource) -> Grammar:
        """Return the grammar, or raise `GrammarRefused`."""
        return self.translate_and_compile(source)[1]

    def translate_and_compile(self, source: GrammarSource) -> tuple[str, Grammar]:
        """Return the grammar, and before it its translation; or raise `GrammarRefused`."""
        parts = [{"name": name, "lark_grammar": lark} for name, lark in source.as_lark().items()]
        translated = json.dumps({"grammars": parts}, ensure_ascii=False)
        return translated, self.compile_translated(TranslatedGrammar(source, translated))

    def compile_translated(self, translated: TranslatedGrammar) -> Grammar:
        """Return the grammar, or raise `GrammarRefused`."""
        source = translated.source
        state = LLMatcher(self._tokenizer, translated.text, log_level=0, limits=_LIMITS)
        if state.is_error():
            raise GrammarRefused(self._explain(source, state.get_error()))
        again = partial(run_with_deep_stack, partial(self.compile_translated, translated))
        grammar = Grammar(source, self._eos_ids, self.num_words, state, again)
        try:
            grammar.follow(()).fill(np.zeros(self.num_words, dtype=np.int32))
        except GrammarFault as fault:
            raise GrammarRefused(f"it is too complex, or nothing matches it: {fault}") from None
        return grammar

    def _explain(self, source: GrammarSource, message: str) -> str:
        shown = _own_words(source, message)
        if source.kind is GrammarKind.MESSAGE:
            return self._explain_message(MessageGrammar.from_source(source), shown)
        if source.kind is GrammarKind.JSON_SCHEMA:
            shown = self._explain_schema(json.loads(source.text), source.is_strict) or shown
        lines = [line[:MAX_LINE_CHARS] for line in shown.strip().splitlines()]
        return "\n".join(lines[:MAX_LINES])

    def _explain_schema(self, schema: JsonSchema, is_strict: bool) -> str | None:
        """Return what is wrong with a schema, and where; None if nothing is."""
        fault = find_fault(with_defaults(expressible(schema, is_strict), is_strict), self._refuse)
        if fault is None:
            return None
        place, reason = fault
        return f"at {place}: {_with_remedy(reason)}"

    def _explain_message(self, message: MessageGrammar, shown: str) -> str:
        """Find the part of a message's grammar that is refused."""
        for each in message.schemas:
            if (fault := self._explain_schema(each.schema, each.is_strict)) is not None:
                return f"{each.place}: {fault}"
        if message.content is not None:
            try:
                self.compile(message.content)
            except GrammarRefused as refusal:
                return str(refusal)
        return shown

    def _refuse(self, schema: JsonSchema) -> str | None:
        # As text: of a mapping the library raises ValueError for integers beyond 64 bits.
        grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema))
        validate = LLMatcher.validate_grammar_with_warnings
        is_wrong, messages = validate(grammar, self._tokenizer, limits=_LIMITS)
        return messages[0].strip() if is_wrong else None


def _with_remedy(reason: str) -> str:
    """Replace or append the remedy of what the library does not support in a schema."""
    if reason.startswith("oneOf constraints"):
        remedy = 'write anyOf, or add "x-guidance": {"coerce_one_of": true} to the schema'
        return f"oneOf is not supported; {remedy}, which takes it for anyOf"
    if reason.startswith("Unknown format"):
        return f"{reason}; known are {', '.join(sorted(KNOWN_FORMATS))}; remove format"
    return f"{reason}; remove them" if reason.startswith("Unimplemented keys") else reason


def _own_words(source: GrammarSource, message: str) -> str:
    """Drop from a message what the client did not write; put the place first."""
    shown = message.partition("%llguidance")[0]
    if source.kind is GrammarKind.EBNF:
        explain = explain_gbnf if is_gbnf(source.text) else explain_lark
        return explain(source.text, shown.rpartition("\n")[0] or message)
    reason = shown.partition("(in regex): ")[2] or shown
    return reason.partition("\n   1 |")[0]
