"""Which pages of the KV cache have a cached state: the state of recurrent layers after their rows.

A recurrent layer continues a text from its state alone, so a cached prefix can be used as far as
its last page with a cached state. A cached state is much larger than a page: there are few, and the
one that was used least recently goes first. A page keeps its keys and values without it.
"""

from collections import OrderedDict
from collections.abc import Sequence as Items

LEAST_TOKENS = 256
"""Tokens between two cached states of a text: each costs a copy of the state, and the last one of a
prompt a step, as the chunk has to end there."""

SHARED_PART = 1 / 4
"""Of `LEAST_TOKENS`: so many suffice where another text has parted from this one."""


class CachedStates:
    """Hands out `count` cached states, which are numbers from 0 on.

    Args:
        least_tokens: see `LEAST_TOKENS`.
    """

    def __init__(self, count: int, page_size: int, least_tokens: int = LEAST_TOKENS) -> None:
        self.count = count
        self._page_size = page_size
        self._least_tokens = least_tokens
        self._free = list(range(count - 1, -1, -1))
        self._of_page: OrderedDict[int, int] = OrderedDict()  # used least recently first
        self._pins: dict[int, int] = {}  # of holders, the page with the cached state that they need
        self._latest: list[int] = []  # pages that got one in the latest step

    def usable(self, pages: Items[int]) -> int:
        """Return how many leading pages of a prefix can be reused."""
        return next((end for end in range(len(pages), 0, -1) if pages[end - 1] in self._of_page), 0)

    def pin(self, holder: int, page: int) -> int:
        """Keep the cached state of a page that has one until `unpin`; return it."""
        self._of_page.move_to_end(page)
        self._pins[holder] = page
        return self._of_page[page]

    def unpin(self, holder: int) -> None:
        """End `pin`: the holder has copied the state with the steps so far, or never will."""
        self._pins.pop(holder, None)

    def boundary(
        self, start: int, end: int, length: int, saved: int, shared: int = 0
    ) -> int | None:
        """Return where within a prompt chunk there should be a cached state, None for none.

        There should be one where texts part, as others will, besides those at distances.
        Source: Pan et al., "Marconi: prefix caching for the era of hybrid LLMs", 2024.

        Args:
            start: first token of the chunk.
            end: of the chunk, exclusive.
            length: tokens of the chunk's sequence; a reused prefix leaves one of them to compute.
            saved: tokens before the latest cached state of the sequence.
            shared: tokens of whole pages that another text has had in common with this one.
        """
        found = min(end, length - 1) // self._page_size * self._page_size
        is_due = found > start and found - saved >= self._least_tokens
        if start < shared <= end and shared - saved >= self._least_tokens * SHARED_PART:
            found, is_due = shared, True
        return found if is_due and self._has_room() else None

    def begin_step(self) -> None:
        """Forget which pages got a cached state in the step before: it was launched."""
        self._latest.clear()

    def save(self, page: int) -> int:
        """Give a page a cached state, which the step writes; return it.

        `boundary` has found that there is one; the page has none yet.
        """
        if not self._free:
            pinned = self._pins.values()
            self.drop([next(one for one in self._of_page if one not in pinned)])
        cached_state = self._of_page[page] = self._free.pop()
        self._latest.append(page)
        return cached_state

    def _has_room(self) -> bool:
        """Whether a cached state is free or can be made free."""
        return bool(self._free) or len(self._of_page) > len(set(self._pins.values()))

    def drop_latest(self) -> None:
        """Drop what an interrupted step may not have written."""
        self.drop(self._latest)
        self._latest.clear()

    def replace(self, pages: Items[int], cached: Items[int]) -> None:
        """Give cached pages without a cached state those of pages with the same tokens."""
        for page, twin in zip(pages, cached, strict=True):
            if page in self._of_page and twin not in self._of_page:
                self._of_page[twin] = self._of_page.pop(page)

    def drop(self, pages: Items[int]) -> None:
        """Free the cached states of pages that are given back."""
        for page in pages:
            if page in self._of_page:
                self._free.append(self._of_page.pop(page))

    def check(self) -> None:
        """Assert that every cached state is free or belongs to one page."""
        numbers = [*self._free, *self._of_page.values()]
        if sorted(numbers) != [*range(self.count)]:
            raise AssertionError("a cached state leaked, or belongs to two pages")
        if not self._of_page.keys() >= set(self._pins.values()):
            raise AssertionError("a cached state was dropped before its state was copied")
