"""vLLM's `num_speculative_tokens_per_batch_size` as a speculation table."""

from itertools import pairwise
from typing import Any, Final

_FORM: Final = "write ranges [FIRST, LAST, TOKENS] of batch sizes, as in [[1, 8, 5], [9, 64, 2]]"


def batch_sizes(table: Any, most_tokens: int) -> tuple[list[dict[str, Any]], list[str]]:
    """The entries of a table, and what vLLM makes of it.

    A range holds until the next one begins; vLLM reads gaps so too. Numbers above `most_tokens` are
    lowered, which vLLM does without a message.

    Raises:
        ValueError: with the remedy.
    """
    ranges = _ranges(table)
    notes = []
    if any(tokens > most_tokens for _, _, tokens in ranges):
        notes.append(f"numbers above {most_tokens} are {most_tokens} in the resource")
    if max(tokens for _, _, tokens in ranges) < most_tokens:
        notes.append("num_speculative_tokens is the largest number of the table in the resource")
    entries = [
        {"from": first, "candidateSteps": [min(tokens, most_tokens)]} for first, _, tokens in ranges
    ]
    return entries, notes


def _ranges(table: Any) -> list[tuple[int, int, int]]:
    if not isinstance(table, list) or not table or not all(map(_is_range, table)):
        raise ValueError(_FORM)
    ranges = [(first, last, tokens) for first, last, tokens in table]
    if ranges[0][0] != 1:
        raise ValueError("the first range begins at batch size 1: correct it")
    if any(first > last for first, last, _ in ranges):
        raise ValueError("a range ends before it begins: correct it")
    if any(second[0] <= first[1] for first, second in pairwise(ranges)):
        raise ValueError("ranges overlap or descend: sort them, and end each before the next one")
    return ranges


def _is_range(each: Any) -> bool:
    return (
        isinstance(each, list)
        and len(each) == 3
        and all(isinstance(number, int) and not isinstance(number, bool) for number in each)
        and each[2] >= 0
    )
