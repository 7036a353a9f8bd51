"""Batch sizes worth capturing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdecode_engine.adaptive.table import padded_size
from specdecode_engine.graphs.plan import batch_sizes


@given(st.integers(1, 4096))
def test_sizes_ascend_from_one_to_the_largest_batch(max_running: int) -> None:
    sizes = batch_sizes(max_running)
    assert list(sizes) == sorted(set(sizes))
    assert (sizes[0], sizes[-1]) == (1, max_running)


@given(st.integers(1, 1024))
def test_padding_stays_small(max_running: int) -> None:
    sizes = batch_sizes(max_running)
    for batch_size in range(1, max_running + 1):
        padded = padded_size(sizes, batch_size)
        assert padded is not None
        allowed = 3 if batch_size <= 8 else max(7, batch_size / 4)
        assert 0 <= padded - batch_size <= allowed


def test_the_usual_sizes() -> None:
    assert batch_sizes(64) == (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64)
    assert batch_sizes(5) == (1, 2, 4, 5)


@pytest.mark.parametrize(
    ("wanted", "sizes"), [((8, 2, 2), (2, 8)), ((), ()), ((3, 100, 200), (3, 16))]
)
def test_configured_sizes_are_kept_within_the_largest_batch(wanted, sizes) -> None:
    assert batch_sizes(16, wanted) == sizes


def test_a_batch_beyond_all_sizes_is_not_padded() -> None:
    assert padded_size((2, 8), 8) == 8
    assert padded_size((2, 8), 9) is None
    assert padded_size((), 1) is None
