"""Structured outputs: a grammar per request, and the tokens it allows after any output.

Works on text and bytes, without tensors: `compiler` compiles a source into a `Grammar` outside the
engine's thread, `matcher` tracks one output, `walk` fills the mask of every node of a draft. It is
built on llguidance; no code outside this folder depends on that.

    GrammarRefused  the source is invalid or too large; the message names the position
    GrammarFault    a grammar failed during generation; ends only that request
"""

from specdecode_engine.grammar.compiler import GrammarCompiler, TokenBytes
from specdecode_engine.grammar.grammar import Grammar
from specdecode_engine.grammar.matcher import GrammarFault, Matcher
from specdecode_engine.grammar.nesting import STACK_BYTES
from specdecode_engine.grammar.source import GrammarKind, GrammarRefused, GrammarSource
from specdecode_engine.grammar.walk import mask_nodes

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
