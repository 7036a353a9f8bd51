"""Says a layout in the words of libraries: spans of query rows, each over one length.

Such a library knows one length per request, of which either every query row sees all, or the last
row all and each one before it one less. Layouts say more; what does not fit is cut into single
rows, which always does, at the price of reading a request's rows once for each.
"""

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Spans:
    """Consecutive query rows that see one length each."""

    owners: tuple[int, ...]  # the request whose pages a span sees
    query_lens: tuple[int, ...]
    lengths: tuple[int, ...]  # rows of keys and values that its last query row sees
    is_causal: bool


def find_spans(query_lens: tuple[int, ...], visible: tuple[int, ...]) -> Spans:
    """Lay out query rows by request, causally if all requests allow it, or by single rows."""
    starts = [sum(query_lens[:number]) for number in range(len(query_lens))]
    seen = {
        owner: visible[start : start + count]
        for owner, (start, count) in enumerate(zip(starts, query_lens, strict=True))
        if count
    }
    for step in (1, 0):
        if all(
            after - before == step for rows in seen.values() for before, after in pairwise(rows)
        ):
            lens = tuple(len(rows) for rows in seen.values())
            return Spans(tuple(seen), lens, tuple(rows[-1] for rows in seen.values()), step == 1)
    owners = tuple(owner for owner, rows in seen.items() for _ in rows)
    return Spans(owners, (1,) * len(visible), visible, is_causal=False)
