"""Automata of terminals, and the search for terminals that a greedy lexer confuses."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from specdecode_engine.grammar.gbnf.alphabet import Alphabet
from specdecode_engine.grammar.gbnf.places import TerminalPlaces, Terminals
from specdecode_engine.grammar.gbnf.syntax import (
    Alternation,
    CharacterSet,
    Concatenation,
    GbnfNode,
    Repetition,
    RuleReference,
    parts_of,
    walk,
)

MAX_POSITIONS = 20_000  # of all terminals
_MAX_COPIES = 8
_MAX_DEPTH = 100


class SearchTooLong(Exception):
    """The search took more steps than allowed."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of an automaton: where it begins and ends, and whether it matches the empty text."""

    first: tuple[int, ...]
    last: tuple[int, ...]
    can_be_empty: bool


_EMPTY = _Piece((), (), True)


class TerminalSizes:
    """How many positions the automata of nodes have, and how deep they nest.

    Args:
        bodies: right sides by name, each after those that it refers to.
    """

    def __init__(self, bodies: Mapping[str, GbnfNode]) -> None:
        self._sizes: dict[int, tuple[int, int]] = {}
        self._rules: dict[str, tuple[int, int]] = {}
        for name, body in bodies.items():
            for node in walk(body):
                self._sizes[id(node)] = self._size(node)
            self._rules[name] = self._sizes[id(body)]

    def too_large(self) -> set[int]:
        """Return the ids of the nodes that are too large for a search."""
        return {
            key
            for key, (positions, depth) in self._sizes.items()
            if positions > MAX_POSITIONS or depth > _MAX_DEPTH
        }

    def _size(self, node: GbnfNode) -> tuple[int, int]:
        if isinstance(node, RuleReference):
            positions, depth = self._rules.get(node.name, (MAX_POSITIONS + 1, 0))
            return positions, depth + 1
        parts = [self._sizes[id(part)] for part in parts_of(node)]
        positions = sum(size for size, _ in parts) + isinstance(node, CharacterSet)
        if isinstance(node, Repetition) and node.most is not None and node.most <= _MAX_COPIES:
            positions *= node.most
        return min(positions, MAX_POSITIONS + 1), 1 + max((depth for _, depth in parts), default=0)


class TerminalAutomata:
    """The terminals of a grammar as one automaton.

    A position is the place of a set of characters in a terminal (Glushkov). Repetitions with larger
    counts are taken for repetitions without: the search may find too much, never too little.
    """

    def __init__(
        self, alphabet: Alphabet, bodies: Mapping[str, GbnfNode], places: TerminalPlaces
    ) -> None:
        self._alphabet, self._bodies, self._places = alphabet, bodies, places
        self._keys = list(places.terminals)
        self._bits: list[int] = []
        self._successors: list[set[int]] = []
        self._owners: list[int] = []
        self._first: list[tuple[int, ...]] = []
        self._last: set[int] = set()
        self._first_characters: dict[Terminals, int] = {}
        self._steps = 0  # positions that were looked at
        for number, terminal in enumerate(places.terminals.values()):
            piece = self._build(terminal)
            self._owners += [number] * (len(self._bits) - len(self._owners))
            self._first.append(piece.first)
            self._last.update(piece.last)

    def conflicts(self, max_steps: int) -> tuple[set[int], int]:
        """Return the ids of terminals that continue where another one, or a shorter match, may end.

        Also returns the steps that the search took; raises `SearchTooLong` beyond `max_steps`.
        Follows the sets of positions that a lexer may be in, as the lexer does, from the sets of
        terminals that may come next.
        """
        found: set[int] = set()
        starts = list(self._places.first)
        seen: set[int | frozenset[int]] = set()
        todo: list[frozenset[int]] = []
        while starts or todo:
            if self._steps > max_steps:
                raise SearchTooLong
            if not todo:
                if (start := starts.pop()) not in seen:
                    seen.add(start)
                    first = [each for number in _members(start) for each in self._first[number]]
                    todo += self._split(first)
                continue
            state = todo.pop()
            if state in seen:
                continue
            seen.add(state)
            after = [position for each in state for position in self._successors[each]]
            ended = {self._owners[each] for each in state if each in self._last}
            found |= self._going_on(ended, after)
            starts.append(self._terminals_after(ended))
            todo += self._split(after)
        return found, self._steps

    def _going_on(self, ended: set[int], after: list[int]) -> set[int]:
        """Return the terminals with positions `after` that a character after `ended` leads to."""
        following = 0
        for number in ended:
            following |= self._characters_after(number)
        same = self._alphabet.same_first_byte
        going_on = {self._owners[each] for each in after if same(self._bits[each]) & following}
        return {self._keys[number] for number in going_on}

    def _terminals_after(self, ended: set[int]) -> Terminals:
        terminals = 0
        for number in ended:
            terminals |= self._places.following[self._keys[number]]
        return terminals

    def _characters_after(self, number: int) -> int:
        """Return the characters that may follow a terminal, and those with the same first byte."""
        following = self._places.following[self._keys[number]]
        if following not in self._first_characters:
            characters = 0
            for other in _members(following):
                self._steps += 1
                for position in self._first[other]:
                    characters |= self._bits[position]
            self._first_characters[following] = self._alphabet.same_first_byte(characters)
        return self._first_characters[following]

    def _split(self, positions: list[int]) -> list[frozenset[int]]:
        """Return the sets of positions that each character leads to."""
        self._steps += len(positions) + 1
        by_bits: dict[int, set[int]] = {}
        for position in positions:
            by_bits.setdefault(self._bits[position], set()).add(position)
        seen = shared = 0
        for bits in by_bits:
            shared |= seen & bits
            seen |= bits
        states = [frozenset(group) for bits, group in by_bits.items() if bits & ~shared]
        sets_of: dict[int, list[int]] = {}
        for bits in by_bits:
            for character in _members(bits & shared):
                sets_of.setdefault(character, []).append(bits)
        self._steps += len(sets_of)
        for sets in set(map(tuple, sets_of.values())):
            states.append(frozenset[int]().union(*(by_bits[bits] for bits in sets)))
        return states

    def _build(self, node: GbnfNode) -> _Piece:
        match node:
            case CharacterSet(ranges):
                self._bits.append(self._alphabet.bits(ranges))
                self._successors.append(set())
                position = (len(self._bits) - 1,)
                return _Piece(position, position, can_be_empty=False)
            case RuleReference(name):
                return self._build(self._bodies[name])
            case Concatenation(items):
                piece = _EMPTY
                for item in items:
                    piece = self._join(piece, self._build(item))
                return piece
            case Alternation(options):
                built = [self._build(option) for option in options]
                return _Piece(
                    tuple(position for each in built for position in each.first),
                    tuple(position for each in built for position in each.last),
                    any(each.can_be_empty for each in built),
                )
            case Repetition():
                return self._repeat(node)
        raise AssertionError(f"{node} cannot be a part of a terminal")

    def _repeat(self, node: Repetition) -> _Piece:
        if node.most is None or node.most > _MAX_COPIES:
            piece = self._build(node.item)
            self._link(piece, piece)
            return _Piece(piece.first, piece.last, piece.can_be_empty or not node.least)
        piece = _EMPTY
        for number in range(node.most):
            copy = self._build(node.item)
            can_be_empty = copy.can_be_empty or number >= node.least
            piece = self._join(piece, _Piece(copy.first, copy.last, can_be_empty))
        return piece

    def _join(self, left: _Piece, right: _Piece) -> _Piece:
        self._link(left, right)
        first = left.first + right.first if left.can_be_empty else left.first
        last = left.last + right.last if right.can_be_empty else right.last
        return _Piece(first, last, left.can_be_empty and right.can_be_empty)

    def _link(self, left: _Piece, right: _Piece) -> None:
        for position in left.last:
            self._successors[position].update(right.first)


def _members(terminals: Terminals) -> Iterator[int]:
    """Return the numbers of the terminals in a set."""
    while terminals:
        lowest = terminals & -terminals
        yield lowest.bit_length() - 1
        terminals ^= lowest
