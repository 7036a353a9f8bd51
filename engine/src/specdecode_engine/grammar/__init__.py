"""What an answer may say: a grammar per request, and the tokens it allows after any output.

Text and bytes, no tensors: `compiler` turns a wish in words into a `Grammar` away from the engine's
thread, `matcher` follows one answer through it, `walk` asks about every node of a draft. The
library behind it is llguidance; nothing outside this folder knows that.

    GrammarRefused  the wish is no grammar, or one that is too large; says where
    GrammarFault    a grammar gave up while its answer was being generated; ends that answer alone
"""

from specdecode_engine.grammar.compiler import GrammarCompiler, TokenBytes
from specdecode_engine.grammar.grammar import Grammar
from specdecode_engine.grammar.matcher import GrammarFault, Matcher
from specdecode_engine.grammar.source import GrammarKind, GrammarRefused, GrammarSource
from specdecode_engine.grammar.walk import mask_nodes

__all__ = [
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
