"""Computed prefixes kept for later requests: which pages hold which tokens, who uses them.

Only full pages of committed tokens are kept, and a page that is kept is never written again: a
sequence that reuses a prefix starts computing at the page boundary after it, in its own pages. Rows
of a draft are the exception: some may be missing, and whoever reuses the page then computes them.

Target and draft share page numbers, so a page is only right for a sequence if its draft rows are
too, or zero, or can be computed from tokens. Draft row i of the EAGLE family is computed from token
i + 1; the last row of a page therefore depends on the first token of the next one. So with
`lookahead` 1 a page is keyed by its own tokens and the one after them: a match then never ends in a
row that was computed for another continuation, and no row of a shared page has to be computed
again. It costs a page per different continuation right at its end. Drafts that read token i alone,
and none at all, have `lookahead` 0.

Pages that nobody uses stay until memory is short, and go in the order in which their last use
ended, ends of prefixes first.

Tokens are packed integers: one memory comparison compares runs, and a page is looked up by the hash
of its bytes; nothing here walks token by token.
"""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Hashable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

_TOKEN_BYTES = array("i").itemsize


def pack(tokens: Items[int]) -> bytes:
    """Write tokens as integers of fixed width."""
    return array("i", tokens).tobytes()


@dataclass(frozen=True, slots=True)
class Paging:
    """How token runs are cut: by pages, each compared with the `lookahead` tokens after it."""

    page_size: int
    lookahead: int

    def start(self, page: int) -> int:
        """First byte of a page."""
        return page * self.page_size * _TOKEN_BYTES

    def span(self, pages: int) -> int:
        """Bytes of a run of pages with the tokens it looks ahead to."""
        return (pages * self.page_size + self.lookahead) * _TOKEN_BYTES


@dataclass(slots=True, eq=False)
class Node:
    """A run of pages after its parent's; owned by the cache, changed by nobody else.

    Children are found by the bytes of their first page. `held` counts the sequences whose prefix
    ends here and the children that are held themselves: where it is 0, nobody uses the node or
    anything below it. A root, which has no parent, has the extra key of its tree.
    """

    run: bytes
    pages: list[int]
    parent: "Node | None"
    children: dict[bytes, "Node"] = field(default_factory=dict)
    held: int = 0
    extra_key: Hashable = None

    def common_pages(self, key: bytes, at: int, most: int, paging: Paging) -> int:
        """Count the leading pages, `most` at most, that agree with `key` from byte `at` on.

        The first page is known to agree.
        """
        if self.run.startswith(key[at : at + paging.span(most)]):
            return most
        agrees, differs = 1, most
        while differs - agrees > 1:
            middle = (agrees + differs) // 2
            if self.run.startswith(key[at : at + paging.span(middle)]):
                agrees = middle
            else:
                differs = middle
        return agrees

    def grow(self, run: bytes, pages: list[int], paging: Paging) -> "Node":
        """Add a leaf as a child; a hold on this node moves to it."""
        leaf = self.children[run[: paging.span(1)]] = Node(run, pages, self, held=1)
        return leaf

    def split(self, pages: int, paging: Paging) -> "Node":
        """Move the first `pages` pages to a new node above; who holds this node still does."""
        assert self.parent is not None
        first = self.run[: paging.span(1)]
        upper = Node(self.run[: paging.span(pages)], self.pages[:pages], self.parent)
        upper.held = int(self.held > 0)
        self.parent.children[first] = upper
        self.run, self.pages = self.run[paging.start(pages) :], self.pages[pages:]
        self.parent = upper
        upper.children[self.run[: paging.span(1)]] = self
        return upper

    def cut(self, pages: int, paging: Paging) -> list[int]:
        """Keep the first `pages` pages of a leaf, or take it off at 0; return the others."""
        assert self.parent is not None
        assert not self.children
        if pages == 0:
            del self.parent.children[self.run[: paging.span(1)]]
        evicted = self.pages[pages:]
        self.run, self.pages = self.run[: paging.span(pages)], self.pages[:pages]
        return evicted


class PrefixCache:
    """Radix trees over pages, one for each extra key that has pages or is in use.

    Its pages count as held in the allocator; `evict` hands them out again. Invariant: a node
    enters `_idle` after its children did, so the first entry is always a leaf.
    """

    def __init__(self, page_size: int, lookahead: int = 0, *, is_on: bool = True) -> None:
        self.lookahead = lookahead
        self.pages = 0
        self.idle_pages = 0
        self.queried_tokens = 0
        self.hit_tokens = 0
        self.evicted_pages = 0
        self._paging = Paging(page_size, lookahead)
        self.is_on = is_on
        self._roots: dict[Hashable, Node] = {}
        self._idle: OrderedDict[Node, None] = OrderedDict()
        self._holds: dict[int, tuple[Node, int]] = {}  # end of each prefix, and its pages

    def match(
        self, tokens: Items[int], most: int | None = None, extra_key: Hashable = 0
    ) -> tuple[list[int], int, Node]:
        """Find the longest cached beginning that leaves a token to compute; evicts nothing.

        Args:
            most: tokens that the beginning may have, where that is fewer.
            extra_key: what the pages depend on besides the tokens; others are not found.

        Returns:
            Its pages; how many of them nobody holds, so that holding them makes as many fewer
            evictable; the node of its last page. Valid until the cache changes.
        """
        longest = len(tokens) - 1
        limit = (longest if most is None else min(most, longest)) // self._paging.page_size
        root = self._roots.get(extra_key)
        if root is None:  # `hold` keeps it
            root = Node(b"", [], None, extra_key=extra_key)
        return self._walk(root, 0, tokens, limit)

    def hold(self, holder: int, tokens: Items[int], pages: list[int], last: Node) -> None:
        """Hold what `match` found for `tokens` until `insert` is called for the same holder."""
        node = self._end_at(last, pages)
        if node.parent is None:
            node = self._roots.setdefault(node.extra_key, node)
        self._take(node)
        self._holds[holder] = node, len(pages)
        self.queried_tokens += len(tokens) if self.is_on else 0
        self.hit_tokens += len(pages) * self._paging.page_size

    def insert(
        self, holder: int, tokens: Items[int], pages: list[int]
    ) -> tuple[list[int], list[int]]:
        """Keep a holder's pages and end its hold.

        Args:
            tokens: what the pages hold, and `lookahead` tokens more at least.
            pages: full ones, from the first on, those held included.

        Returns:
            Pages that are not kept, and the cached pages that hold the same tokens, one for each;
            none of these if the cache is off.
        """
        before, shared = self._holds.pop(holder)
        if not self.is_on:
            self._release(before)
            return pages, []
        found, _, last = self._walk(before, shared, tokens, len(pages))
        node = self._end_at(last, found)
        self._take(node)
        self._release(before)
        own = pages[shared:]
        fresh = own[len(found) :]
        if fresh:
            start = (len(pages) - len(fresh)) * self._paging.page_size
            end = len(pages) * self._paging.page_size + self.lookahead
            node = node.grow(pack(tokens[start:end]), fresh, self._paging)
            self.pages += len(fresh)
        self._release(node)
        return own[: len(found)], found

    def evict(self, count: int) -> list[int]:
        """Remove `count` of the `idle_pages` pages that are not in use; the caller gets them."""
        if count > self.idle_pages:
            raise AssertionError(f"{count} pages requested, {self.idle_pages} are idle")
        evicted: list[int] = []
        while len(evicted) < count:
            leaf = next(iter(self._idle))
            rest = max(len(leaf.pages) - (count - len(evicted)), 0)
            evicted += leaf.cut(rest, self._paging)
            if rest == 0:
                del self._idle[leaf]
                assert leaf.parent is not None
                self._forget_if_empty(leaf.parent)
        self.pages -= count
        self.idle_pages -= count
        self.evicted_pages += count
        return evicted

    def check(self) -> set[int]:
        """Assert that counts, order and tree agree; return every cached page."""
        held = Counter(node for node, _ in self._holds.values())
        ranks = {node: rank for rank, node in enumerate(self._idle)}
        pages: list[int] = []
        idle, open_nodes = 0, list(self._roots.values())
        while open_nodes:
            node = open_nodes.pop()
            children = list(node.children.values())
            open_nodes += children
            expected = held[node] + sum(child.held > 0 for child in children)
            if node.held != expected:
                raise AssertionError("a cached prefix is held more or less often than it is used")
            if node.parent is None:
                if node.held == 0 and not children:
                    raise AssertionError("a tree without pages that nobody uses is kept")
                continue
            pages += node.pages
            if (node.held == 0) != (node in ranks):
                raise AssertionError("a cached prefix is idle while it is in use, or the reverse")
            if node.held == 0:
                idle += len(node.pages)
                if any(ranks[child] > ranks[node] for child in children):
                    raise AssertionError("a cached prefix would be evicted before what follows it")
        if (len(pages), idle) != (self.pages, self.idle_pages) or len(set(pages)) != len(pages):
            raise AssertionError("cached pages are miscounted or cached twice")
        return set(pages)

    def _walk(
        self, node: Node, done: int, tokens: Items[int], limit: int
    ) -> tuple[list[int], int, Node]:
        """Continue after a node, `done` pages down, while the first `limit` are cached."""
        paging, used, idle = self._paging, len(node.pages), 0
        pages: list[int] = []
        if not self.pages:
            return pages, idle, node
        start, end = done * paging.page_size, limit * paging.page_size + paging.lookahead
        key = pack(tokens[start:end])
        while used == len(node.pages) and (left := limit - done - len(pages)) > 0:
            at = paging.start(len(pages))
            child = node.children.get(key[at : at + paging.span(1)])
            if child is None:
                break
            most = min(len(child.pages), left)
            node, used = child, child.common_pages(key, at, most, paging)
            pages += child.pages[:used]
            idle += used if child.held == 0 else 0
        return pages, idle, node

    def _end_at(self, node: Node, pages: list[int]) -> Node:
        """Return the node that ends with the last of `pages`, splitting `node` for it."""
        if not pages or pages[-1] == node.pages[-1]:
            return node
        upper = node.split(node.pages.index(pages[-1]) + 1, self._paging)
        if upper.held == 0:
            self._idle[upper] = None
        return upper

    def _take(self, node: Node) -> None:
        """Hold a node and, where it was idle, its parents."""
        while True:
            node.held += 1
            if node.held > 1 or node.parent is None:
                return
            del self._idle[node]
            self.idle_pages -= len(node.pages)
            node = node.parent

    def _release(self, node: Node) -> None:
        """Undo `_take`; the end of a prefix becomes idle before its parents."""
        while True:
            node.held -= 1
            if node.held > 0:
                return
            if node.parent is None:
                self._forget_if_empty(node)
                return
            self._idle[node] = None
            self.idle_pages += len(node.pages)
            node = node.parent

    def _forget_if_empty(self, node: Node) -> None:
        """Forget a root that nobody uses and that has no pages: clients choose the extra keys."""
        if node.parent is None and node.held == 0 and not node.children:
            del self._roots[node.extra_key]
