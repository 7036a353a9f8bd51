"""Structured outputs: a grammar per request, and the tokens it allows after any output.

Works on text and bytes, without tensors: `compiler` compiles a source into a `Grammar` outside the
engine's thread, `matcher` tracks one output and fills the masks of a draft's nodes. A grammar of a
client is first compiled and followed in a child process with limits (`trial`, `trial_process`). It
is built on llguidance; no code outside this folder depends on that.
"""

from specdecode_engine.grammar.compiler import GrammarCompiler, TokenBytes, TranslatedGrammar
from specdecode_engine.grammar.lark import lark_literal
from specdecode_engine.grammar.matcher import Grammar, GrammarFault, Matcher, mask_nodes
from specdecode_engine.grammar.nesting import STACK_BYTES, start_threads
from specdecode_engine.grammar.source import (
    MAX_SOURCE_CHARS,
    GrammarKind,
    GrammarRefused,
    GrammarSource,
    MessageGrammar,
    NamedSchema,
)
from specdecode_engine.grammar.trial import TrialLimits
from specdecode_engine.grammar.trial_process import TrialProcess, TrialUnavailable

__all__ = [
    "MAX_SOURCE_CHARS",
    "STACK_BYTES",
    "Grammar",
    "GrammarCompiler",
    "GrammarFault",
    "GrammarKind",
    "GrammarRefused",
    "GrammarSource",
    "Matcher",
    "MessageGrammar",
    "NamedSchema",
    "TokenBytes",
    "TranslatedGrammar",
    "TrialLimits",
    "TrialProcess",
    "TrialUnavailable",
    "lark_literal",
    "mask_nodes",
    "start_threads",
]
