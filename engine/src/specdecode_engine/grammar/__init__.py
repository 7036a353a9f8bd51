"""Structured outputs: a grammar per request, and the tokens it allows after any output.

Works on text and bytes, without tensors: `compiler` compiles a source into a `Grammar` outside the
engine's thread, `matcher` tracks one output and fills the masks of a draft's nodes. It is
built on llguidance; no code outside this folder depends on that.
"""

from specdecode_engine.grammar.compiler import GrammarCompiler, TokenBytes
from specdecode_engine.grammar.matcher import Grammar, GrammarFault, Matcher, mask_nodes
from specdecode_engine.grammar.nesting import STACK_BYTES
from specdecode_engine.grammar.source import GrammarKind, GrammarRefused, GrammarSource

__all__ = [
    "STACK_BYTES",
    "Grammar",
    "GrammarCompiler",
    "GrammarFault",
    "GrammarKind",
    "GrammarRefused",
    "GrammarSource",
    "Matcher",
    "TokenBytes",
    "mask_nodes",
]
