"""Spans show every query row what its metadata shows it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode_kernels.flashinfer import Spans, find_spans


def shown(spans: Spans) -> list[tuple[int, int]]:
    """List whose rows, and how many, each query row sees as a library reads spans."""
    return [
        (owner, length - (count - 1 - place if spans.is_causal else 0))
        for owner, count, length in zip(spans.owners, spans.qo_lens, spans.lengths, strict=True)
        for place in range(count)
    ]


@pytest.mark.parametrize(
    ("qo_lens", "kv_lens", "lens", "is_causal"),
    [
        ((1, 1), (5, 9), (1, 1), True),
        ((3, 3), (4, 5, 6, 1, 2, 3), (3, 3), True),
        ((2, 2), (4, 4, 7, 7), (2, 2), False),
        ((2, 1), (4, 4, 7), (2, 1), False),
        ((2, 2), (4, 5, 7, 7), (1, 1, 1, 1), False),
        ((3,), (6, 6, 7), (1, 1, 1), False),
        ((0, 2), (1, 2), (2,), True),
    ],
)
def test_requests_stay_whole_where_they_can(
    qo_lens: tuple[int, ...],
    kv_lens: tuple[int, ...],
    lens: tuple[int, ...],
    is_causal: bool,
) -> None:
    spans = find_spans(qo_lens, kv_lens)
    assert spans.qo_lens == lens
    assert spans.is_causal is is_causal


@settings(derandomize=True, max_examples=200)
@given(st.lists(st.lists(st.integers(0, 3), max_size=3), max_size=4))
def test_any_rows_are_shown_what_they_see(requests: list[list[int]]) -> None:
    lens = tuple(len(rows) for rows in requests)
    kv_lens = tuple(seen for rows in requests for seen in rows)
    wanted = [(owner, seen) for owner, rows in enumerate(requests) for seen in rows]
    assert shown(find_spans(lens, kv_lens)) == wanted


def test_no_rows_are_no_spans() -> None:
    assert find_spans((), ()) == Spans((), (), (), True)
    assert find_spans((0, 0), ()) == Spans((), (), (), True)
