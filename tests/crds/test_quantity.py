"""Quantities as Kubernetes reads them."""

from decimal import Decimal

import pytest

from specdecode_api.quantity import amount, is_quantity, whole_amount


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", "0"),
        ("2", "2"),
        ("500m", "0.5"),
        ("1.5", "1.5"),
        ("1k", "1000"),
        ("1M", "1000000"),
        ("2Ki", "2048"),
        ("1.5Gi", "1610612736"),
        ("1E", "1000000000000000000"),
        ("1Ei", "1152921504606846976"),
    ],
)
def test_amount_is_exact(text, number):
    assert is_quantity(text)
    assert amount(text) == Decimal(number)


def test_whole_amount_rounds_up():
    assert [whole_amount(text) for text in ("1", "1m", "1001m", "0.1Ki")] == [1, 1, 2, 103]


@pytest.mark.parametrize(
    "text", ["", " 1", "1 ", "1\n", "-1", "+1", ".5", "1.", "1gi", "Gi", "1e3", "1KiB", "9" * 33]
)
def test_other_text_is_none(text):
    assert not is_quantity(text)
