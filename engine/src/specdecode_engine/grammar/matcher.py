"""The state of one output in its grammar. Letters: V tokens in W words of 32 bits."""

import numpy as np
from llguidance import LLMatcher
from llguidance.numpy import fill_next_token_bitmask
from numpy.typing import NDArray

Words = NDArray[np.int32]


class GrammarFault(Exception):
    """The grammar failed; the message contains the reason."""


class Matcher:
    """Advances one output through its grammar token by token, with rollback.

    A token that ends the output is allowed where the grammar may end; it is never advanced over.

    Args:
        inner: the library's matcher, in its start state and not shared.
        eos_token_ids: tokens that end the output.
        ends_late: forbid them while any other token is allowed.
    """

    def __init__(self, inner: LLMatcher, eos_token_ids: frozenset[int], ends_late: bool) -> None:
        self._inner = inner
        self._eos_token_ids = eos_token_ids
        self._eos = np.array(sorted(eos_token_ids), dtype=np.int64)
        self._ends_late = ends_late

    def ends_with(self, token: int) -> bool:
        """Whether a token ends the output."""
        return token in self._eos_token_ids

    def fill(self, words: Words) -> None:
        """Write the tokens that may come next, as bits, to [W] i32."""
        fill_next_token_bitmask(self._inner, words[None])
        self._check()
        if self._ends_late:
            self._put_off_the_end(words)
        if not words.any():
            raise GrammarFault("no token of the vocabulary can follow")

    def advance(self, token: int) -> None:
        """Advance by one token."""
        self._inner.consume_token(token)
        self._check()

    def rollback(self) -> None:
        """Take back the last token."""
        self._inner.rollback(1)
        self._check()

    def _put_off_the_end(self, words: Words) -> None:
        others = words.copy()
        others[self._eos // 32] &= ~_bits(self._eos)
        if others.any():
            words[:] = others

    def _check(self) -> None:
        if self._inner.is_error():
            raise GrammarFault(_first_line(self._inner.get_error()))


def allows(words: Words, token: int) -> bool:
    """Whether a token's bit is set; tokens past the vocabulary are not allowed."""
    word = token // 32
    return 0 <= word < len(words) and bool(int(words[word]) >> token % 32 & 1)


def _first_line(message: str) -> str:
    return message.partition("\n")[0].removesuffix("; stopping")


def _bits(tokens: NDArray[np.int64]) -> Words:
    return (np.uint32(1) << (tokens % 32).astype(np.uint32)).view(np.int32)
