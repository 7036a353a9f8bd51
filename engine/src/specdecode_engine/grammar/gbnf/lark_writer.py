"""Writes a GBNF grammar in llguidance's Lark dialect."""

from collections.abc import Iterator
from dataclasses import dataclass

from specdecode_engine.grammar.gbnf.lexemes import TerminalSplit, split_into_terminals
from specdecode_engine.grammar.gbnf.reader import read_gbnf
from specdecode_engine.grammar.gbnf.rules import check_finite, order_rules
from specdecode_engine.grammar.gbnf.syntax import (
    Alternation,
    CharacterSet,
    Concatenation,
    GbnfError,
    GbnfNode,
    Ranges,
    Repetition,
    RuleReference,
    TokenReference,
    parts_of,
)
from specdecode_engine.grammar.lark import lark_literal

START = "root"
_OPERATORS = {(0, None): "*", (1, None): "+", (0, 1): "?"}


def gbnf_to_lark(text: str) -> str:
    """Translate a grammar that begins with the rule `root`; both accept the same texts.

    Raises `GbnfError` with the line and the column, also for a rule that matches no text.
    """
    rules = read_gbnf(text)
    if START not in rules:
        raise GbnfError(text, 0, f"the grammar has no rule `{START}`, with which it has to begin")
    order = order_rules(rules, START)
    check_finite(text, rules, order)
    return "\n".join(_Writer(split_into_terminals(rules, order, START)).lines())


@dataclass(frozen=True, slots=True)
class _Written:
    """A part as text. `is_one` parts can stand before an operator, `is_row` parts in a sequence."""

    text: str
    is_one: bool = True
    is_row: bool = True

    def as_one(self) -> str:
        return self.text if self.is_one else f"({self.text})"

    def as_row(self) -> str:
        return self.text if self.is_row else f"({self.text})"


class _Writer:
    """Names rules `r1`, `r2` … and terminals `T0`, `T1` …: names may differ by case alone."""

    def __init__(self, split: TerminalSplit) -> None:
        self._bodies = split.bodies
        start, *others = split.phrases
        self._rule_names = {start: "start"} | {name: f"r{n}" for n, name in enumerate(others, 1)}
        self._terminal_names = {name: f"T{n}" for n, name in enumerate(split.bodies)}
        self._terminals = frozenset(split.terminals)
        self._pending: list[tuple[str, GbnfNode]] = []
        self._defined: set[str] = set()

    def lines(self) -> Iterator[str]:
        """Return the rules, and the terminals that they use."""
        for name, rule_name in self._rule_names.items():
            yield f"{rule_name}: {self._write(self._bodies[name], self._terminals).text}"
        while self._pending:
            name, body = self._pending.pop()
            yield f"{name}: {self._write(body, frozenset()).text}"

    def _write(self, body: GbnfNode, terminals: frozenset[int]) -> _Written:
        """Write a right side; without `terminals`, that of a terminal."""
        order, todo = list[GbnfNode](), [body]
        while todo:
            order.append(todo.pop())
            if id(order[-1]) not in terminals:
                todo += parts_of(order[-1])
        written: dict[int, _Written] = {}
        for node in reversed(order):
            if id(node) in terminals:
                written[id(node)] = self._use_terminal(node)
            else:
                parts = [written[id(part)] for part in parts_of(node)]
                written[id(node)] = self._assemble(node, parts, is_terminal=not terminals)
        return written[id(body)]

    def _use_terminal(self, node: GbnfNode) -> _Written:
        """Write a terminal in a rule: a character or a literal as it is, others by a name."""
        if isinstance(node, RuleReference):
            return self._name(self._terminal_names[node.name], self._bodies[node.name])
        if isinstance(node, CharacterSet) or _spelling(node) is not None:
            return self._assemble(node, [], is_terminal=True)
        return self._name(f"T{len(self._terminal_names) + len(self._defined)}", node)

    def _name(self, name: str, body: GbnfNode) -> _Written:
        if name not in self._defined:
            self._defined.add(name)
            self._pending.append((name, body))
        return _Written(name)

    def _assemble(self, node: GbnfNode, parts: list[_Written], is_terminal: bool) -> _Written:
        spelling = _spelling(node) if is_terminal or isinstance(node, CharacterSet) else None
        if spelling is not None:
            return _Written(lark_literal(spelling))
        match node:
            case CharacterSet(ranges):
                return _Written(_character_class(ranges))
            case TokenReference(text):
                return _Written(text)
            case RuleReference(name) if is_terminal:
                return self._name(self._terminal_names[name], self._bodies[name])
            case RuleReference(name):
                return _Written(self._rule_names[name])
            case Repetition(_, _, 0) | Concatenation(()):
                return _Written('""')
            case Repetition(_, least, most):
                return _Written(parts[0].as_one() + _operator(least, most), is_one=False)
            case Alternation():
                text = " | ".join(part.as_row() for part in parts)
                return _Written(text, is_one=False, is_row=False)
        return _Written(" ".join(part.as_row() for part in parts), is_one=False)


def _spelling(node: GbnfNode) -> str | None:
    """Return the one text that a character or a sequence of characters matches, if it is one."""
    characters = parts_of(node) if isinstance(node, Concatenation) else (node,)
    spelled = ""
    for each in characters:
        if not isinstance(each, CharacterSet) or len(each.ranges) != 1:
            return None
        low, high = each.ranges[0]
        if low != high:
            return None
        spelled += chr(low)
    return spelled


def _operator(least: int, most: int | None) -> str:
    counts = f"{{{least},{'' if most is None else most}}}"
    return _OPERATORS.get((least, most), counts)


def _character_class(ranges: Ranges) -> str:
    parts = (_code(a) if a == b else f"{_code(a)}-{_code(b)}" for a, b in ranges)
    return f"/[{''.join(parts)}]/"


def _code(code: int) -> str:
    """Write a character so that no operator of a class can be meant."""
    char = chr(code)
    return char if char.isascii() and char.isalnum() else f"\\x{{{code:x}}}"
