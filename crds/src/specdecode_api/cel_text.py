"""CEL expressions for the text of numbers, whose length the API server can bound.

It takes the longest branch of a condition, and the sum of texts that are joined; what `string()`
or `join()` returns is unbounded for it.
"""

from collections.abc import Callable, Iterable


def number_text(number: str, most: int) -> str:
    """Return the CEL text of a whole number, given as a CEL expression, from 0 to `most`."""
    places = range(len(str(most)) - 1, 0, -1)
    leading = (
        f"({number} < {10**place} ? '' : {_digit(f'{number} / {10**place} % 10')})"
        for place in places
    )
    return " + ".join((*leading, _digit(f"{number} % 10")))


def _digit(number: str) -> str:
    choices = "".join(f"{number} == {digit} ? '{digit}' : " for digit in range(9))
    return f"({choices}'9')"


def numbers_text(
    numbers: Iterable[int], is_one: Callable[[int], str], has_less: Callable[[int], str]
) -> str:
    """Return the CEL text of those of the ascending `numbers` for which a condition holds.

    Args:
        is_one: the CEL condition of a number.
        has_less: the CEL condition that a lesser number meets it too.
    """
    parts = (
        f"({is_one(number)} ? ({has_less(number)} ? ', ' : '') + '{number}' : '')"
        for number in numbers
    )
    return " + ".join(parts)
