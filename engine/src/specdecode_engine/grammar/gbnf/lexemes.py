"""Which parts of a grammar become terminals, so that a greedy lexer accepts the same texts.

llguidance reads text with a lexer and a parser. The lexer takes the longest match of all terminals
that may come next, and never goes back: `"a" "ab" | "aa" "c"` with a terminal per literal does not
match `aab`. Terminals of one character each are always exact, but a mask then costs a step of the
parser for every byte of every token.

Therefore the largest regular parts become terminals first. A terminal conflicts with another one,
or with itself, if both may come next and a text that it matches, with a character that may follow,
begins a match of the other one. What continues too far is split into its parts, until nothing
conflicts.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from specdecode_engine.grammar.gbnf.alphabet import Alphabet
from specdecode_engine.grammar.gbnf.automata import SearchTooLong, TerminalAutomata, TerminalSizes
from specdecode_engine.grammar.gbnf.places import TerminalPlaces, find_places
from specdecode_engine.grammar.gbnf.rules import RuleOrder, Rules
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

MAX_STEPS = 500_000  # of the search; beyond them, every terminal is one character


@dataclass(frozen=True, slots=True)
class TerminalSplit:
    """A grammar cut into terminals.

    Attributes:
        bodies: the right sides of all rules, with neighbours of one terminal in one node.
        phrases: names of the rules that the parser reads; the others are parts of terminals.
        terminals: ids of the nodes in phrases that are terminals.
    """

    bodies: Mapping[str, GbnfNode]
    phrases: tuple[str, ...]
    terminals: frozenset[int]


def split_into_terminals(rules: Rules, order: RuleOrder, start: str) -> TerminalSplit:
    """Return the largest terminals that do not conflict."""
    names = [name for group in order.groups for name in group]
    bodies = {
        name: rules[name].body if name in order.regular else _grouped(rules[name].body, order)
        for name in names
    }
    unsplit = {id(node) for body in bodies.values() for node in _regular(body, order)}
    alphabet = Alphabet(each.ranges for body in bodies.values() for each in _characters(body))
    if start in order.regular:  # nothing follows the only terminal
        return _split(bodies, find_places(bodies, start, unsplit))
    characters = {id(node) for body in bodies.values() for node in _characters(body)}
    unsplit -= TerminalSizes(bodies).too_large()
    steps_left = MAX_STEPS
    while True:
        places = find_places(bodies, start, unsplit)
        try:
            too_long, steps = TerminalAutomata(alphabet, bodies, places).conflicts(steps_left)
        except SearchTooLong:
            return _split(bodies, find_places(bodies, start, characters))
        if not too_long:
            return _split(bodies, places)
        unsplit -= too_long
        steps_left -= steps


def _split(bodies: Mapping[str, GbnfNode], places: TerminalPlaces) -> TerminalSplit:
    return TerminalSplit(bodies, places.phrases, frozenset(places.terminals))


def _characters(body: GbnfNode) -> Iterator[CharacterSet]:
    return (node for node in walk(body) if isinstance(node, CharacterSet))


def _regular(body: GbnfNode, order: RuleOrder) -> Iterator[GbnfNode]:
    """Return the parts that can be terminals."""
    found: set[int] = set()
    for node in walk(body):
        if _is_regular(node, found, order):
            found.add(id(node))
            yield node


def _is_regular(node: GbnfNode, regular_parts: set[int], order: RuleOrder) -> bool:
    match node:
        case RuleReference(name):
            return name in order.regular
        case CharacterSet() | Concatenation() | Alternation() | Repetition():
            return all(id(part) in regular_parts for part in parts_of(node))
    return False


def _grouped(body: GbnfNode, order: RuleOrder) -> GbnfNode:
    """Put regular neighbours of a sequence, and regular alternatives, into nodes of their own."""
    regular = {id(node) for node in _regular(body, order)}
    new: dict[int, GbnfNode] = {}
    for node in walk(body):
        parts = [(new[id(part)], id(part) in regular) for part in parts_of(node)]
        new[id(node)] = node if id(node) in regular or not parts else _with_parts(node, parts)
    return new[id(body)]


def _with_parts(node: GbnfNode, parts: list[tuple[GbnfNode, bool]]) -> GbnfNode:
    match node:
        case Repetition(_, least, most):
            return Repetition(parts[0][0], least, most)
        case Alternation():
            regular = [part for part, is_regular in parts if is_regular]
            others = [part for part, is_regular in parts if not is_regular]
            return Alternation((*_together(regular, Alternation), *others))
    items: list[GbnfNode] = []
    run: list[GbnfNode] = []
    for part, is_regular in parts:
        if is_regular:
            run.append(part)
            continue
        items += [*_together(run, Concatenation), part]
        run = []
    return Concatenation((*items, *_together(run, Concatenation)))


def _together(
    parts: list[GbnfNode], kind: type[Alternation] | type[Concatenation]
) -> list[GbnfNode]:
    return [kind(tuple(parts))] if len(parts) > 1 else parts
