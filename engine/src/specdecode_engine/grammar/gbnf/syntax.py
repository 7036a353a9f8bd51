"""The parts of a GBNF grammar: sets of characters, sequences, alternatives, repetitions, rules."""

from collections.abc import Iterator
from dataclasses import dataclass

from specdecode_engine.grammar.lark import describe_place

MAX_CODE_POINT = 0x10FFFF
Ranges = tuple[tuple[int, int], ...]
"""Sorted, disjoint ranges of code points, both ends included, without surrogates."""

_SURROGATES = (0xD800, 0xDFFF)


class GbnfError(ValueError):
    """A grammar that cannot be read; the message has the line and the column."""

    def __init__(self, text: str, offset: int, reason: str) -> None:
        super().__init__(f"{describe_place(text, offset)}: {reason}")


# Nodes are compared by identity: equal parts in two places are two nodes.
@dataclass(frozen=True, slots=True, eq=False)
class CharacterSet:
    """One character of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True, eq=False)
class Concatenation:
    """Items one after the other; without items, the empty text."""

    items: "tuple[GbnfNode, ...]"


@dataclass(frozen=True, slots=True, eq=False)
class Alternation:
    """One of at least one option."""

    options: "tuple[GbnfNode, ...]"


@dataclass(frozen=True, slots=True, eq=False)
class Repetition:
    """An item `least` to `most` times; None is any number."""

    item: "GbnfNode"
    least: int
    most: int | None


@dataclass(frozen=True, slots=True, eq=False)
class RuleReference:
    """The text of a rule; `offset` is the place of the name in the source."""

    name: str
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class TokenReference:
    """One token of the vocabulary, as `<[id]>` or `<name>`."""

    text: str


GbnfNode = CharacterSet | Concatenation | Alternation | Repetition | RuleReference | TokenReference


@dataclass(frozen=True, slots=True)
class GbnfRule:
    """A definition; `offset` is the place of its name in the source."""

    name: str
    offset: int
    body: GbnfNode


def parts_of(node: GbnfNode) -> tuple[GbnfNode, ...]:
    """Return the direct parts of a node."""
    match node:
        case Concatenation(items):
            return items
        case Alternation(options):
            return options
        case Repetition(item):
            return (item,)
    return ()


def walk(node: GbnfNode) -> Iterator[GbnfNode]:
    """Return a node and everything inside it, parts before the whole; references are leaves."""
    order, todo = [], [node]
    while todo:
        order.append(todo.pop())
        todo += parts_of(order[-1])
    return reversed(order)


def normalized(ranges: list[tuple[int, int]], is_negated: bool = False) -> Ranges:
    """Sort and merge ranges, without surrogates; negated, everything but those."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    if is_negated:
        ends = [-1, *(high for _, high in merged)]
        starts = [*(low for low, _ in merged), MAX_CODE_POINT + 1]
        merged = [(e + 1, s - 1) for e, s in zip(ends, starts, strict=True) if e + 1 < s]
    return tuple(part for each in merged for part in _without_surrogates(*each))


def _without_surrogates(low: int, high: int) -> Iterator[tuple[int, int]]:
    first, last = _SURROGATES
    if low < first:
        yield low, min(high, first - 1)
    if high > last:
        yield max(low, last + 1), high
