"""Which pages of the key-value cache are free and which are held."""


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
        """Pages that can be taken now."""
        return len(self._free)

    def pages_for(self, rows: int) -> int:
        """Pages that `rows` rows need."""
        return -(-rows // self.page_size)

    def take(self, count: int) -> list[int]:
        """Take `count` pages; the caller has looked at `free` first."""
        if count > len(self._free):
            raise AssertionError(f"{count} pages asked for, {len(self._free)} are free")
        taken = [self._free.pop() for _ in range(count)]
        self._held.update(taken)
        return taken

    def give_back(self, pages: list[int]) -> None:
        """Return pages that were taken before."""
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
