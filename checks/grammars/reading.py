"""Whether our grammars accept a text, byte by byte, with a token per byte."""

import numpy as np

from specdecode_engine.grammar import (
    GrammarCompiler,
    GrammarKind,
    GrammarSource,
    TokenBytes,
)
from specdecode_engine.grammar.matcher import allows

_EOS = 256


def compiler_of_bytes() -> GrammarCompiler:
    """Return a compiler for a vocabulary with a token for each byte, and an end."""
    spellings = [*(bytes([byte]) for byte in range(256)), b"</s>"]
    return GrammarCompiler(TokenBytes(spellings, frozenset({_EOS}), frozenset({_EOS})))


class GrammarReader:
    """Finds which texts a grammar accepts. Raises `GrammarRefused` if it is invalid."""

    def __init__(
        self, compiler: GrammarCompiler, source: str, kind: GrammarKind = GrammarKind.EBNF
    ) -> None:
        self._grammar = compiler.compile(GrammarSource(kind, source))
        self._words = np.zeros(compiler.num_words, dtype=np.int32)
        self._matcher = self._grammar.follow(())

    def accepts(self, text: str) -> bool:
        return self._follow(text) and allows(self._words, _EOS)

    def takes_prefix(self, text: str) -> bool:
        """Whether the grammar accepts a text that begins with this one."""
        return self._follow(text)

    def _follow(self, text: str) -> bool:
        """Follow a text and fill the mask after it; false where the grammar does not admit it.

        It goes back to where the text before it differs.
        """
        data, matcher = text.encode(), self._matcher
        while not data.startswith(bytes(matcher.tokens)):
            matcher.rollback()
        for byte in data[len(matcher.tokens) :]:
            matcher.fill(self._words)
            if not allows(self._words, byte):
                return False
            matcher.advance(byte)
        matcher.fill(self._words)
        return True
