"""The three sources of drafts without a model: a trie, a suffix tree, and a lookup in the text.

All are deterministic. Ties go to the lower token, then to the node that was made first.
"""

import ctypes
from array import array
from typing import NamedTuple

from specdecode_engine.speculate.ngram.library import DraftResult, ngram_library

Text = array  # of type "i", token ids
TOKEN_BYTES = 4
UNLIMITED = 1 << 14
NUM_MARKS = 1 << 14


class DraftLimits(NamedTuple):
    """How large a draft may be; `max_children` of any node, so that 1 is a chain."""

    max_tokens: int
    max_depth: int = UNLIMITED
    max_children: int = UNLIMITED


class NgramDraft(NamedTuple):
    """Drafted tokens; parents[j] is the parent of node j + 1, and node 0 the context's last token.

    A parent precedes its children.
    """

    tokens: list[int]
    parents: list[int]

    def first_tokens(self) -> list[int]:
        """Return the children of node 0."""
        return [one for one, parent in zip(*self, strict=True) if not parent]


NOTHING = NgramDraft([], [])


class _Nodes:
    """Where C writes the nodes of a draft."""

    def __init__(self, most: int) -> None:
        self._tokens, self._parents = (ctypes.c_int32 * most)(), (ctypes.c_int32 * most)()
        self.addresses = ctypes.addressof(self._tokens), ctypes.addressof(self._parents)

    def first(self, count: int) -> NgramDraft:
        return NgramDraft(self._tokens[:count], self._parents[:count]) if count else NOTHING


class Trie:
    """Paths of the last texts, as SGLang's NGRAM keeps them.

    Inserting a text counts the path of up to `depth` tokens from each of its positions. A draft
    starts at every suffix of the context that is a path, the longest first: breadth first over the
    children that were used last, or (`by_count`) over the most frequent ones by the product of
    their shares. A match of m tokens takes

        min_breadth + (depth - 1 - m) * (max_breadth - min_breadth) / (depth - 1)

    children, and as many less at each level as the last factor is; 1 at least.

    Args:
        capacity: most nodes; then the leaf goes that was used last the longest ago.
        widest: most tokens of a draft.

    Raises:
        MemoryError
    """

    def __init__(
        self,
        depth: int,
        capacity: int,
        *,
        min_match: int = 1,
        min_breadth: int = 1,
        max_breadth: int = 10,
        by_count: bool = False,
        widest: int = 255,
    ) -> None:
        self._library, self._depth = ngram_library(), depth
        sizes = depth, capacity, min_match, min_breadth, max_breadth, by_count, widest
        self._handle = self._library.trie_new(*sizes)
        if self._handle is None:
            raise MemoryError(f"no memory for a trie of {capacity} nodes; lower ngram.capacity")
        self._nodes = _Nodes(widest)

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self._library.trie_free(self._handle)

    @property
    def num_bytes(self) -> int:
        """Memory in use, less than `most_bytes`."""
        return self._library.trie_bytes(self._handle)

    def insert(self, text: "Text[int]", last: int | None = None, length: int | None = None) -> None:
        """Insert a text, or the last of its first `length` tokens."""
        self._library.trie_insert(self._handle, *_end_of(text, last, length))

    def draft(self, context: "Text[int]", limits: DraftLimits) -> NgramDraft:
        """Draft after the context."""
        end = _end_of(context, self._depth)
        count = self._library.trie_draft(self._handle, *end, *limits, *self._nodes.addresses)
        return self._nodes.first(count)


class SuffixTree:
    """A suffix tree with counts over texts, as in suffix decoding (Oliaro et al., 2024).

    For every match of the context's last m tokens, m from `min_match` to one less than its length,
    a draft of at most m * `factor` tokens follows the most frequent child while the product of the
    shares of the counts is at least `least`. The draft with the greatest sum of these products
    wins, the longer match of equal ones. Trees take the greatest products first.

    Args:
        depth: most tokens of a match with its draft.
        capacity: most nodes, and most tokens of text; then the older half of the text goes.
        widest: most tokens of a draft.

    Raises:
        MemoryError
    """

    def __init__(
        self,
        depth: int,
        capacity: int,
        *,
        min_match: int = 1,
        factor: float = 1.0,
        least: float = 0.1,
        widest: int = 255,
    ) -> None:
        self._library, self._depth = ngram_library(), depth
        self._handle = self._library.suffix_new(depth, capacity, min_match, factor, least, widest)
        if self._handle is None:
            raise MemoryError(f"no memory for a tree of {capacity} nodes; lower ngram.capacity")
        self._nodes, self._result = _Nodes(widest), DraftResult()
        self._result_at = ctypes.byref(self._result)

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self._library.suffix_free(self._handle)

    @property
    def num_bytes(self) -> int:
        """Memory in use, less than `most_bytes` and `TOKEN_BYTES` for each token of text."""
        return self._library.suffix_bytes(self._handle)

    @property
    def score(self) -> float:
        """Sum of the probabilities of the latest draft."""
        return float(self._result.score)

    @property
    def matched(self) -> int:
        """Tokens of the context that the latest draft follows."""
        return int(self._result.matched)

    def append(self, text: "Text[int]", last: int | None = None) -> None:
        """Append a text, or its last tokens, to the present text."""
        self._library.suffix_append(self._handle, *_end_of(text, last))

    def end_text(self) -> None:
        """End the present text: the next token does not follow its last one."""
        self._library.suffix_end(self._handle)

    def draft(self, context: "Text[int]", limits: DraftLimits) -> NgramDraft:
        """Draft after the context."""
        end = _end_of(context, self._depth)
        written = *self._nodes.addresses, self._result_at
        self._library.suffix_draft(self._handle, *end, *limits, *written)
        return self._nodes.first(self._result.count)


class PromptLookup:
    """Finds the context's last tokens earlier in the same text (Saxena, 2023; vLLM's rules).

    The longest match of `min_match` to `max_match` tokens counts, and of several the earliest one;
    the draft is what follows it.
    """

    def __init__(self, min_match: int, max_match: int) -> None:
        self._library = ngram_library()
        self._min_match, self._max_match = min_match, max_match
        self._first = ctypes.c_long()
        self._first_at = ctypes.byref(self._first)

    def draft(self, context: "Text[int]", limits: DraftLimits) -> NgramDraft:
        """Draft a chain after the context."""
        most = min(limits.max_tokens, limits.max_depth)
        bounds = self._min_match, self._max_match, most
        count = self._library.lookup_draft(*_end_of(context), *bounds, self._first_at)
        if not count:
            return NOTHING
        first = self._first.value
        return NgramDraft(context[first : first + count].tolist(), list(range(count)))


class TokenMarks:
    """Which tokens a growing text has, in `NUM_MARKS` bytes: a new last one has no match.

    Tokens share marks, so that a new token is taken for another one sometimes.
    """

    def __init__(self) -> None:
        self._library = ngram_library()
        self._marks = (ctypes.c_uint8 * NUM_MARKS)()
        self._marks_at = ctypes.addressof(self._marks)
        self._length = 0
        self._is_repeated = False

    def is_repeated(self, text: "Text[int]") -> bool:
        """Return whether the last token may occur before; never false where it does."""
        if len(text) > self._length:
            end, marks = text.buffer_info(), (self._marks_at, NUM_MARKS)
            self._is_repeated = bool(self._library.mark_tokens(*end, self._length, *marks))
            self._length = len(text)
        return self._is_repeated


def most_bytes(capacity: int) -> int:
    """Return the most memory that a trie or a tree of so many nodes ever takes."""
    return ngram_library().forest_most_bytes(capacity)


def _end_of(
    text: "Text[int]", last: int | None = None, length: int | None = None
) -> tuple[int, int]:
    """Return the address and the number of the last of the first `length` tokens of a text."""
    address, known = text.buffer_info()
    length = known if length is None else length
    count = length if last is None else min(last, length)
    return address + (length - count) * TOKEN_BYTES, count
