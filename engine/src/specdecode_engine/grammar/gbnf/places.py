"""Where terminals stand in a grammar, and which may follow which."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from specdecode_engine.grammar.gbnf.rules import until_stable
from specdecode_engine.grammar.gbnf.syntax import (
    Alternation,
    Concatenation,
    GbnfNode,
    Repetition,
    RuleReference,
    TokenReference,
    parts_of,
    walk,
)

Terminals = int
"""A set of terminals: bit n is that of the n-th of `TerminalPlaces.terminals`."""


@dataclass(frozen=True, slots=True)
class TerminalPlaces:
    """The terminals of a grammar.

    Attributes:
        phrases: names of the rules that the parser reads, the start rule first.
        terminals: the nodes by id.
        first: the terminals that a text, or the rest of one after a token, may begin with.
        following: the terminals that may follow each one, by its id. Rules are not distinguished by
            where they are used, so it may be more.
    """

    phrases: tuple[str, ...]
    terminals: Mapping[int, GbnfNode]
    first: tuple[Terminals, ...]
    following: Mapping[int, Terminals]


def find_places(bodies: Mapping[str, GbnfNode], start: str, unsplit: set[int]) -> TerminalPlaces:
    """Find the terminals, which are the largest nodes whose ids are in `unsplit`.

    Args:
        bodies: the right sides of rules by name, each after those that it refers to, as far as
            there is no recursion.
    """
    return _Finder(bodies, start, unsplit).find()


class _Finder:
    def __init__(self, bodies: Mapping[str, GbnfNode], start: str, unsplit: set[int]) -> None:
        self._bodies, self._start, self._unsplit = bodies, start, unsplit
        self._empty = _can_be_empty(bodies)
        self._terminals: dict[int, GbnfNode] = {}
        self._bits: dict[int, Terminals] = {}
        self._first: dict[int, Terminals] = {}
        self._rule_first: dict[str, Terminals] = {}

    def find(self) -> TerminalPlaces:
        phrases = self._phrases()
        self._find_first(phrases)
        following, after_tokens = self._follow()
        first = (self._first[id(self._bodies[self._start])], after_tokens)
        return TerminalPlaces(tuple(phrases), self._terminals, first, following)

    def _phrases(self) -> dict[str, list[GbnfNode]]:
        """Find the terminals; return the rules that contain them, each with its nodes."""
        phrases: dict[str, list[GbnfNode]] = {}
        todo = {self._start: None}
        while todo:
            name, _ = todo.popitem()
            phrases[name] = self._nodes(name)
            for node in phrases[name]:
                if id(node) in self._unsplit:
                    self._bits[id(node)] = 1 << len(self._terminals)
                    self._terminals[id(node)] = node
                elif isinstance(node, RuleReference) and node.name not in phrases:
                    todo[node.name] = None
        return phrases

    def _nodes(self, name: str) -> list[GbnfNode]:
        """Return the nodes of a rule down to its terminals, each before its parts."""
        found, todo = list[GbnfNode](), [self._bodies[name]]
        while todo:
            node = todo.pop()
            found.append(node)
            if id(node) not in self._unsplit:
                todo += parts_of(node)
        return found

    def _find_first(self, phrases: Mapping[str, list[GbnfNode]]) -> None:
        self._rule_first = dict.fromkeys(phrases, 0)

        def update(name: str) -> bool:
            for node in reversed(phrases[name]):
                self._first[id(node)] = self._first_of(node)
            before, found = self._rule_first[name], self._first[id(self._bodies[name])]
            self._rule_first[name] = found
            return found != before

        until_stable({name: self._bodies[name] for name in self._bodies if name in phrases}, update)

    def _first_of(self, node: GbnfNode) -> Terminals:
        if id(node) in self._bits:
            return self._bits[id(node)]
        if isinstance(node, RuleReference):
            return self._rule_first[node.name]
        bits = 0
        for part in parts_of(node):
            bits |= self._first[id(part)]
            if isinstance(node, Concatenation) and not self._empty[id(part)]:
                break
        return bits

    def _follow(self) -> tuple[dict[int, Terminals], Terminals]:
        """Return what may follow each terminal, and what may follow tokens."""
        rules = {self._start: 0}
        terminals = dict.fromkeys(self._terminals, 0)
        todo, waiting, after_tokens = deque([self._start]), {self._start}, 0
        while todo:
            waiting.remove(name := todo.popleft())
            for node, after in self._with_followers(self._bodies[name], rules[name]):
                if id(node) in self._bits:
                    terminals[id(node)] |= after
                elif isinstance(node, TokenReference):
                    after_tokens |= after
                elif isinstance(node, RuleReference):
                    known = rules.get(node.name)
                    if known is None or known | after != known:
                        rules[node.name] = (known or 0) | after
                        todo += [node.name] * (node.name not in waiting)
                        waiting.add(node.name)
        return terminals, after_tokens

    def _with_followers(
        self, body: GbnfNode, after_body: Terminals
    ) -> Iterator[tuple[GbnfNode, Terminals]]:
        """Return the nodes of a rule, each with the terminals that may follow it."""
        todo = [(body, after_body)]
        while todo:
            node, after = todo.pop()
            yield node, after
            if id(node) in self._bits:
                continue
            if isinstance(node, Repetition) and node.most != 1:
                after |= self._first[id(node.item)]
            for part in reversed(parts_of(node)):
                todo.append((part, after))
                if isinstance(node, Concatenation):
                    kept = after if self._empty[id(part)] else 0
                    after = self._first[id(part)] | kept


def _can_be_empty(bodies: Mapping[str, GbnfNode]) -> dict[int, bool]:
    """Return by id which nodes match the empty text."""
    found: dict[int, bool] = {}
    rules = dict.fromkeys(bodies, False)

    def update(name: str) -> bool:
        for node in walk(bodies[name]):
            parts = [found[id(part)] for part in parts_of(node)]
            match node:
                case RuleReference(referred):
                    found[id(node)] = rules[referred]
                case Alternation():
                    found[id(node)] = any(parts)
                case Repetition(_, least, _):
                    found[id(node)] = parts[0] or not least
                case _:
                    found[id(node)] = isinstance(node, Concatenation) and all(parts)
        before, rules[name] = rules[name], found[id(bodies[name])]
        return rules[name] != before

    until_stable(bodies, update)
    return found
