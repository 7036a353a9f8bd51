"""The tree of cached prefixes: runs of tokens, and the pages that hold their KV.

Tokens are kept as packed integers, so that runs are compared by one memory comparison and a page
is looked up by the hash of its bytes; nothing here walks token by token.
"""

from array import array
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
    anything below it.
    """

    run: bytes
    pages: list[int]
    parent: "Node | None"
    children: dict[bytes, "Node"] = field(default_factory=dict)
    held: int = 0

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
        """Hang a new leaf below; a hold on this node moves to it."""
        leaf = Node(run, pages, self, held=1)
        self.children[run[: paging.span(1)]] = leaf
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
        """Keep the first `pages` pages of a leaf, or take it off where that is none.

        Returns:
            The pages that are cached no more.
        """
        assert self.parent is not None
        assert not self.children
        if pages == 0:
            del self.parent.children[self.run[: paging.span(1)]]
        gone = self.pages[pages:]
        self.run, self.pages = self.run[: paging.span(pages)], self.pages[:pages]
        return gone
