"""Which pages of the KV cache are free, and which of them have a window page.

A layer with a sliding window reads the latest rows only, so its keys and values lie in a smaller
pool. Its rows of a page are in the page's *window page*, as long as it has one: attention reads the
page table mapped to window pages. vLLM (hybrid KV cache manager) and SGLang (SWA allocator and
radix cache) do the same with a page table per group and with an index mapping.
"""

from collections import OrderedDict
from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import NamedTuple


class PageAllocator:
    """Hands out page ids 1..pages-1; page 0 is the dummy page that padding rows write to.

    Invariant: every page but 0 is either in the free list or held, never both, never twice.
    """

    def __init__(self, pages: int, page_size: int) -> None:
        if pages < 2:
            raise ValueError(f"a pool of {pages} pages has only the dummy page; use at least 2")
        self.page_size = page_size
        self.total = pages - 1
        self._free = list(range(pages - 1, 0, -1))
        self._held: set[int] = set()

    @property
    def free(self) -> int:
        return len(self._free)

    def pages_for(self, rows: int) -> int:
        return -(-rows // self.page_size)

    def take(self, count: int) -> list[int]:
        """Take `count` pages; the caller has looked at `free` first."""
        if count > len(self._free):
            raise AssertionError(f"{count} pages requested, {len(self._free)} are free")
        taken = [self._free.pop() for _ in range(count)]
        self._held.update(taken)
        return taken

    def give_back(self, pages: list[int]) -> None:
        for page in pages:
            self._held.remove(page)
        self._free.extend(pages)

    def check(self) -> None:
        """Assert that nothing leaked and nothing is held twice."""
        free = set(self._free)
        if len(free) != len(self._free) or free & self._held:
            raise AssertionError("a page is free twice or free and held")
        if len(free) + len(self._held) != self.total or 0 in free | self._held:
            raise AssertionError("pages leaked")


@dataclass(frozen=True, slots=True)
class WindowLimits:
    """What bounds the window pages in use.

    A sequence uses those of window - 1 rows before its next row, of the rows of its next step, and
    of parts of three pages around them. All sequences of a step share the chunk.
    """

    window: int  # positions that a row of the layers sees, its own included
    page_size: int
    reserve_tokens: int  # rows beyond the known tokens that a sequence may come to hold
    chunk_tokens: int  # prompt tokens of a step

    @property
    def per_sequence(self) -> int:
        """Window pages that a sequence uses, besides those of its part of the chunk."""
        return -(-(self.window - 1 + self.reserve_tokens) // self.page_size) + 3

    @property
    def per_step(self) -> int:
        """Window pages that the chunk of a step uses."""
        return -(-self.chunk_tokens // self.page_size)

    def suffice_for(self, running: int) -> int:
        """Return how many window pages serve so many sequences, window page 0 included."""
        return 1 + running * self.per_sequence + self.per_step


class WindowPageCounts(NamedTuple):
    """Window pages by state; together all but window page 0."""

    free: int  # a request that waits can use them
    reserved: int  # running requests and the chunk of a step can come to use them
    used: int  # a row of a running request sees them


class WindowPages:
    """Attaches window pages to the pages of sequences and of the prefix cache.

    A window page is in use while a sequence has rows to compute that see it. Then it is idle and
    stays attached, so that a prefix hit can end there, until a sequence needs a window page and
    none is free; the longest idle one goes first. So all but those in use are as good as free.

    As many as a sequence can come to use are reserved while it runs, so that no step lacks one.
    Nothing has to be reserved if there is one for every page.

    Args:
        pages: of the pool, page 0 included.
        window_pages: window page 0 included, which is where pages without one lead; at least
            `pages`, or enough for one sequence.
    """

    def __init__(self, pages: int, window_pages: int, limits: WindowLimits) -> None:
        self.total = window_pages - 1
        self._limits = limits
        self._page_size = limits.page_size
        self._window = limits.window
        self._reserves = window_pages < pages
        self._unreserved = self.total - (limits.per_step if self._reserves else 0)
        self._reserved: dict[int, int] = {}
        self._attached = [0] * pages  # window page of each page; 0: none
        self._users = [0] * pages  # sequences that use the page's window page
        self._free = list(range(window_pages - 1, 0, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()  # pages whose window page nobody uses
        self._spans: dict[int, tuple[int, int]] = {}  # first and end of the pages a holder uses
        self._changed: set[int] = set()

    @property
    def counts(self) -> WindowPageCounts:
        used = self.total - len(self._free) - len(self._idle)
        free = min(self.total - used, self._unreserved)
        return WindowPageCounts(free, self.total - used - free, used)

    def usable(self, pages: Items[int]) -> int:
        """Return how many leading pages of a prefix can be reused.

        The row after them sees window - 1 rows, whose pages must all have a window page.
        """
        needed = -(-(self._window - 1) // self._page_size)
        end, count = len(pages), 0
        for index in range(len(pages) - 1, -1, -1):
            if count == needed:
                break
            count += 1
            if not self._attached[pages[index]]:
                end, count = index, 0
        return end

    def has_room(self, pages: int) -> bool:
        """Whether a sequence that comes to hold so many pages can run."""
        return self._needed(pages) <= self._unreserved

    def open(self, holder: int, matched: Items[int], pages: int) -> None:
        """Use what the row after a usable prefix sees, until `close` for the same holder.

        Args:
            pages: that the holder comes to hold; there is room for them.
        """
        end = len(matched)
        self._reserved[holder] = self._needed(pages)
        self._unreserved -= self._reserved[holder]
        first = self._first_seen(end * self._page_size)
        for page in matched[first:]:
            self._idle.pop(page, None)
            self._users[page] += 1
        self._spans[holder] = first, end

    def slide(self, holder: int, pages: Items[int], computed: int) -> None:
        """End the use of window pages that no later row sees, `computed` rows being there.

        What the first row of the page before sees is kept too: there the sequence may end in the
        prefix cache, with the last row of a draft missing.
        """
        first, end = self._spans[holder]
        start = self._first_seen(max(computed - 1, 0) // self._page_size * self._page_size)
        if start > first:
            self._end_use(pages[first : min(start, end)])
            self._spans[holder] = start, max(start, end)

    def extend(self, holder: int, pages: Items[int], rows: int) -> None:
        """Attach window pages to a holder's pages up to its first `rows` rows."""
        first, end = self._spans[holder]
        new = pages[end : -(-rows // self._page_size)]
        for page in new:
            self._attach(page)
        self._spans[holder] = first, end + len(new)

    def close(self, holder: int, pages: Items[int]) -> None:
        """End the use of all window pages of a holder."""
        first, end = self._spans.pop(holder)
        self._end_use(pages[first:end])
        self._unreserved += self._reserved.pop(holder)

    def replace(self, pages: Items[int], cached: Items[int]) -> None:
        """Give cached pages without a window page those of pages with the same tokens."""
        for page, twin in zip(pages, cached, strict=True):
            window_page = self._attached[page]
            if window_page and not self._attached[twin]:
                del self._idle[page]
                self._set(page, 0)
                self._set(twin, window_page)
                self._idle[twin] = None

    def drop(self, pages: Items[int]) -> None:
        """Free the window pages of pages that are given back."""
        for page in pages:
            if self._attached[page]:
                del self._idle[page]
                self._detach(page)

    def take_changes(self) -> dict[int, int]:
        """Return the window page of every page where it changed since the last call."""
        changes = {page: self._attached[page] for page in self._changed}
        self._changed.clear()
        return changes

    def repeat_changes(self) -> None:
        """Return all pages at the next `take_changes`: it is not known what became of the last."""
        self._changed.update(range(1, len(self._attached)))

    def check(self, held: Mapping[int, Items[int]]) -> None:
        """Assert that window pages add up, given the pages of each holder."""
        attached = [page for page, window_page in enumerate(self._attached) if window_page]
        ids = {self._attached[page] for page in attached} | set(self._free)
        if len(ids) != self.total or len(attached) + len(self._free) != self.total or 0 in ids:
            raise AssertionError("a window page leaked, or belongs to two pages")
        users = [0] * len(self._users)
        for holder, (first, end) in self._spans.items():
            for page in held[holder][first:end]:
                users[page] += 1
        used = {page for page, count in enumerate(users) if count}
        if users != self._users or not used.issubset(attached):
            raise AssertionError("a window page is used more or less often than it is counted")
        if set(self._idle) != {page for page in attached if not users[page]}:
            raise AssertionError("a window page is idle and in use, or neither")

    def _needed(self, pages: int) -> int:
        return min(pages, self._limits.per_sequence) if self._reserves else 0

    def _first_seen(self, row: int) -> int:
        """Index of the first page that a row sees."""
        return max(row - self._window + 1, 0) // self._page_size

    def _end_use(self, pages: Items[int]) -> None:
        for page in pages:
            self._users[page] -= 1
            if not self._users[page]:
                self._idle[page] = None

    def _attach(self, page: int) -> None:
        if not self._free:
            if not self._idle:
                raise AssertionError("every window page is in use; there are too few of them")
            self._detach(self._idle.popitem(last=False)[0])
        self._users[page] = 1
        self._set(page, self._free.pop())

    def _detach(self, page: int) -> None:
        self._free.append(self._attached[page])
        self._set(page, 0)

    def _set(self, page: int, window_page: int) -> None:
        self._attached[page] = window_page
        self._changed.add(page)
