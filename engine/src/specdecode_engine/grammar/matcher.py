"""Compiled grammars and the state of outputs in them. Letters: V tokens in W words of 32 bits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from llguidance import LLMatcher
from llguidance.numpy import fill_next_token_bitmask
from numpy.typing import NDArray

from specdecode_engine.grammar.source import GrammarSource

Words = NDArray[np.int32]


class GrammarFault(Exception):
    """The grammar failed during generation, which ends only that request."""


class Matcher:
    """Advances one output through its grammar token by token, with rollback.

    A token that ends the output is allowed where the grammar may end; it is never advanced over.

    Args:
        inner: the library's matcher, in its start state and not shared.
        eos_token_ids: tokens that end the output.
        ends_late: forbid them while any other token is allowed.
    """

    def __init__(self, inner: LLMatcher, eos_token_ids: frozenset[int], ends_late: bool) -> None:
        self.tokens: list[int] = []
        """What it has advanced over."""
        self._inner = inner
        self._eos_token_ids = eos_token_ids
        self._eos = np.array(sorted(eos_token_ids), dtype=np.int64)
        self.ends_late = ends_late

    def stands_after(self, output: Sequence[int], ends_late: bool) -> bool:
        """Whether it is where `Grammar.follow` would put it."""
        return self.ends_late == ends_late and self.tokens == list(output)

    def ends_with(self, token: int) -> bool:
        return token in self._eos_token_ids

    def fill(self, words: Words) -> None:
        """Write the tokens that may come next, as bits, to [W] i32."""
        fill_next_token_bitmask(self._inner, words[None])
        self._check()
        if self.ends_late:
            others = words.copy()
            bits = (np.uint32(1) << (self._eos % 32).astype(np.uint32)).view(np.int32)
            np.bitwise_and.at(others, self._eos // 32, ~bits)
            if others.any():
                words[:] = others
        if not words.any():
            raise GrammarFault("no token of the vocabulary can follow")

    def advance(self, token: int) -> None:
        self._inner.consume_token(token)
        self._check()
        self.tokens.append(token)

    def rollback(self) -> None:
        """Take back the last token."""
        self._inner.rollback(1)
        self._check()
        self.tokens.pop()

    def _check(self) -> None:
        if self._inner.is_error():
            message, _, _ = self._inner.get_error().partition("\n")
            raise GrammarFault(message.removesuffix("; stopping"))


@dataclass(slots=True, eq=False)
class Grammar:
    """A grammar compiled for a vocabulary.

    The outputs that start from one grammar share its lexer and its limits: if one fails, all fail.
    Therefore requests and choices do not share a grammar, even if their sources are equal.

    Attributes:
        num_words: words of a mask.
        compile_again: returns the grammar with a lexer of its own, which has done no work yet;
            safe in any thread.
    """

    source: GrammarSource
    eos_token_ids: frozenset[int]
    num_words: int
    start_state: LLMatcher = field(repr=False)
    compile_again: Callable[[], "Grammar"] = field(repr=False)
    _kept: Matcher | GrammarFault | None = field(default=None, init=False, repr=False)

    def follow(
        self,
        output: Sequence[int],
        ends_late: bool = False,
        pause: Callable[[], None] = lambda: None,
    ) -> Matcher:
        """Return a matcher that continues after `output`; may raise `GrammarFault`.

        It may fail where an answer that was never interrupted would fail, and nowhere else. A
        matcher that was kept in this place is returned at once.

        Args:
            pause: called after each token.
        """
        kept, self._kept = self._kept, None
        if isinstance(kept, GrammarFault):
            raise kept
        if kept is not None and kept.stands_after(output, ends_late):
            return kept
        try:
            return self._replay(output, ends_late, pause, with_masks=False)
        except GrammarFault:
            # Only masks refill the fuel of the library's lexer, which may have run out without
            # them. A lexer that failed stays so.
            self.start_state = self.compile_again().start_state
            return self._replay(output, ends_late, pause, with_masks=True)

    def keep(self, matcher: Matcher) -> None:
        """Keep a matcher that is not used at present for the next `follow`."""
        self._kept = matcher

    def prepare(self, output: Sequence[int], ends_late: bool, pause: Callable[[], None]) -> None:
        """Do the work of the next `follow` with the same arguments, whatever its result is."""
        try:
            self._kept = self.follow(output, ends_late, pause)
        except GrammarFault as fault:
            self._kept = fault

    def _replay(
        self,
        output: Sequence[int],
        ends_late: bool,
        pause: Callable[[], None],
        *,
        with_masks: bool,
    ) -> Matcher:
        """Advance over `output`, with masks as in an answer that is generated, or without any."""
        matcher = Matcher(self.start_state.deep_copy(), self.eos_token_ids, ends_late)
        words = np.empty(self.num_words, dtype=np.int32)
        for token in output:
            if with_masks:
                matcher.fill(words)
            matcher.advance(token)
            pause()
        if output:  # this mask has more work, if those before it were left out
            matcher.fill(words)
        return matcher


def mask_nodes(
    matcher: Matcher,
    tokens: Sequence[int],
    parents: Sequence[int],
    rows: Words,
    is_late: Callable[[], bool] = lambda: False,
) -> int | None:
    """Fill the mask of every node that can be reached, depth first; the others allow everything.

    A node whose token its parent forbids can never be accepted, nor can its descendants, and no
    token is sampled after a token that ends the output.

    Args:
        matcher: in the state of the root, and restored unless it raises.
        tokens: the token of every node; the root's is ignored.
        parents: the parent of every node; the root is node 0 and its own parent.
        rows: [nodes, W] i32, written.
        is_late: whether no further node should be masked; the root is masked in any case.

    Returns:
        How many draft tokens may be accepted at most, as deeper nodes were left out; None if none
        was.
    """
    children: list[list[int]] = [[] for _ in tokens]
    for node in range(1, len(tokens)):
        children[parents[node]].append(node)
    rows[:] = -1
    shallowest: list[int] = []

    def visit(node: int, depth: int) -> None:
        matcher.fill(rows[node])
        for child in children[node]:
            token = tokens[child]
            if matcher.ends_with(token) or not allows(rows[node], token):
                continue
            if is_late():
                shallowest.append(depth)
                return
            matcher.advance(token)
            visit(child, depth + 1)
            matcher.rollback()

    visit(0, 0)
    return min(shallowest, default=None)


def allows(words: Words, token: int) -> bool:
    """Whether a token's bit is set; tokens past the vocabulary are not allowed."""
    word = token // 32
    return 0 <= word < len(words) and bool(int(words[word]) >> token % 32 & 1)
