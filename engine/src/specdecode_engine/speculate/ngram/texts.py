"""What is remembered of each request: its text, and the sources that draft after it."""

from array import array
from collections.abc import Callable
from typing import Protocol

from specdecode_api.boot import NgramBoot
from specdecode_api.speculation import MAX_DRAFT_TOKENS, NgramMatch, NgramScope, NgramSource
from specdecode_engine.speculate.ngram.sources import (
    NOTHING,
    NUM_MARKS,
    TOKEN_BYTES,
    DraftLimits,
    NgramDraft,
    PromptLookup,
    SuffixTree,
    Text,
    TokenMarks,
    Trie,
    most_bytes,
)

WIDEST = MAX_DRAFT_TOKENS - 1

SHARED_PARTS, OWN_PART = 4, 2
"""Of the capacity of suffix trees in scope model: each of two trees of ended texts has a quarter,
and the trees of the running requests share one half."""


class DraftText(Protocol):
    """The text of one request, which grows."""

    def append(self, tokens: list[int]) -> None: ...

    def draft(self, limits: DraftLimits) -> NgramDraft: ...

    def close(self, prompt_tokens: int) -> None:
        """Keep the tokens after the prompt for other requests, if the scope allows it."""
        ...

    def __len__(self) -> int: ...


class _LookupText:
    """A text that is searched itself."""

    def __init__(self, lookup: PromptLookup) -> None:
        self._lookup = lookup
        self._text: Text[int] = array("i")

    def __len__(self) -> int:
        return len(self._text)

    def append(self, tokens: list[int]) -> None:
        self._text.fromlist(tokens)

    def draft(self, limits: DraftLimits) -> NgramDraft:
        return self._lookup.draft(self._text, limits)

    def close(self, prompt_tokens: int) -> None:
        """Nothing is kept."""


class _TrieText:
    """A text in a trie: all of it first, then new tokens with the `depth` - 1 before them.

    Tokens are inserted when a draft is made that may use them.

    Args:
        marks: of the text, where the trie has no other.
    """

    def __init__(self, trie: Trie, depth: int, marks: TokenMarks | None = None) -> None:
        self._trie, self._depth, self._marks = trie, depth, marks
        self._text: Text[int] = array("i")
        self._pending: list[tuple[int, int]] = []  # tokens to insert, and the text's length then

    def __len__(self) -> int:
        return len(self._text)

    def append(self, tokens: list[int]) -> None:
        self._text.fromlist(tokens)
        self._pending.append((self._depth + len(tokens) - 1, len(self._text)))

    def draft(self, limits: DraftLimits) -> NgramDraft:
        if self._marks is not None and not self._marks.is_repeated(self._text):
            return NOTHING
        for last, length in self._pending:
            self._trie.insert(self._text, last, length)
        self._pending.clear()
        return self._trie.draft(self._text, limits)

    def close(self, prompt_tokens: int) -> None:
        """A shared trie has the text already, but for what followed the latest draft."""


class _EndedTexts:
    """Suffix trees of texts that ended: when the newer one is half full, the older one goes."""

    def __init__(self, make: Callable[[], SuffixTree], most_tokens: int) -> None:
        self._make, self._most_tokens = make, most_tokens
        self._newer, self._older = make(), make()
        self._tokens = 0  # in the newer one

    def append(self, text: "Text[int]") -> None:
        if self._tokens and self._tokens + len(text) > self._most_tokens:
            self._newer, self._older = self._make(), self._newer
            self._tokens = 0
        self._newer.append(text)
        self._newer.end_text()
        self._tokens += len(text)

    def trees(self) -> tuple[SuffixTree, SuffixTree]:
        return self._newer, self._older


class _SuffixText:
    """A text in a suffix tree of its own, and the texts that ended before; its own tree first.

    Its own tree gets its tokens when a draft is made that may use them.
    """

    def __init__(self, tree: SuffixTree, ended: _EndedTexts | None) -> None:
        self._tree, self._ended, self._marks = tree, ended, TokenMarks()
        self._text: Text[int] = array("i")
        self._appended = 0  # tokens, to the tree

    def __len__(self) -> int:
        return len(self._text)

    def append(self, tokens: list[int]) -> None:
        self._text.fromlist(tokens)

    def draft(self, limits: DraftLimits) -> NgramDraft:
        best, score = NOTHING, 0.0
        if self._marks.is_repeated(self._text):
            self._tree.append(self._text, len(self._text) - self._appended)
            self._appended = len(self._text)
            best, score = self._tree.draft(self._text, limits), self._tree.score
        for tree in () if self._ended is None else self._ended.trees():
            other = tree.draft(self._text, limits)
            if tree.score > score:
                best, score = other, tree.score
        return best

    def close(self, prompt_tokens: int) -> None:
        if self._ended is not None and len(self._text) > prompt_tokens:
            self._ended.append(self._text[prompt_tokens:])


def text_maker(settings: NgramBoot, max_running: int) -> Callable[[], DraftText]:
    """Return what makes the text of a request that starts.

    Args:
        max_running: requests that share the capacity.
    """
    depth, own = settings.depth, _own_capacity(settings, max_running)
    match settings.source:
        case NgramSource.PROMPT:
            lookup = PromptLookup(settings.shortest_match, depth)
            return lambda: _LookupText(lookup)
        case NgramSource.TRIE:
            if settings.scope is NgramScope.REQUEST:
                return lambda: _TrieText(_make_trie(settings, own), depth, TokenMarks())
            trie = _make_trie(settings, settings.capacity)
            return lambda: _TrieText(trie, depth)
        case NgramSource.SUFFIX:
            ended = None
            if settings.scope is NgramScope.MODEL:
                part = max(settings.capacity // SHARED_PARTS, 1)
                ended = _EndedTexts(lambda: _make_tree(settings, part), part // 2)
            return lambda: _SuffixText(_make_tree(settings, own), ended)


def ngram_bytes(settings: NgramBoot, max_running: int, longest_text: int) -> int:
    """Return the most memory of the host that drafting without a model ever takes.

    Args:
        longest_text: tokens of the longest prompt and answer.
    """
    texts = max_running * (longest_text * TOKEN_BYTES + NUM_MARKS)
    own = _own_capacity(settings, max_running)
    is_shared = settings.scope is NgramScope.MODEL
    match settings.source:
        case NgramSource.PROMPT:
            return texts
        case NgramSource.TRIE if is_shared:
            return texts + most_bytes(settings.capacity)
        case NgramSource.TRIE:
            return texts + max_running * most_bytes(own)
    trees = max_running * _tree_bytes(own)
    if is_shared:
        trees += 2 * _tree_bytes(max(settings.capacity // SHARED_PARTS, 1))
    return texts + trees


def _own_capacity(settings: NgramBoot, max_running: int) -> int:
    is_shared = settings.scope is NgramScope.MODEL
    return max(settings.capacity // (OWN_PART if is_shared else 1) // max_running, 1)


def _tree_bytes(capacity: int) -> int:
    return most_bytes(capacity) + capacity * TOKEN_BYTES


def _make_trie(settings: NgramBoot, capacity: int) -> Trie:
    return Trie(
        settings.depth,
        capacity,
        min_match=settings.shortest_match,
        min_breadth=settings.min_breadth,
        max_breadth=settings.max_breadth,
        by_count=settings.match is NgramMatch.PROB,
        widest=WIDEST,
    )


def _make_tree(settings: NgramBoot, capacity: int) -> SuffixTree:
    return SuffixTree(
        settings.depth,
        capacity,
        min_match=settings.shortest_match,
        factor=settings.max_spec_factor,
        least=settings.min_token_probability,
        widest=WIDEST,
    )
