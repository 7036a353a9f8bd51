"""Parses GBNF.

The notation is that of llama.cpp, with what xgrammar's EBNF adds without another meaning: a rule
may continue in any line that does not begin the next one, and there are more escapes.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from specdecode_engine.grammar.gbnf.syntax import (
    MAX_CODE_POINT,
    Alternation,
    CharacterSet,
    Concatenation,
    GbnfError,
    GbnfNode,
    GbnfRule,
    Repetition,
    RuleReference,
    TokenReference,
    normalized,
)
from specdecode_engine.grammar.lark import describe_place

MAX_REPEATS = 1_000_000
MAX_BRACKETS = 300
_MAX_OPERATORS = 10  # after one another on one item
_SHOWN_CHARS = 12

_SPACE = re.compile(r"(?:[ \t\r\n]+|#[^\r\n]*)*")
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_HEAD = re.compile(r"([A-Za-z0-9_-]+)[ \t]*::=")
_TOKEN = re.compile(r"<\[[0-9]+\]>|<[^<>\s\[]+>")
_COUNTS = re.compile(r"\{\s*([0-9]+)\s*(?:(,)\s*([0-9]+)?\s*)?\}")
_OPERATORS = {"*": (0, None), "+": (1, None), "?": (0, 1)}

_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_ESCAPES = {
    "n": "\n", "r": "\r", "t": "\t", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "e": "\x1b",
    "0": "\0", **{char: char for char in "\"\\[]-'?/"},
}  # fmt: skip
_CLASS_ESCAPES = {char: char for char in "^$.*+(){}|"}
_ANY = normalized([(0, MAX_CODE_POINT)])


def read_gbnf(text: str) -> Mapping[str, GbnfRule]:
    """Return the rules of a grammar by name.

    Raises `GbnfError`: at the first construct that is unknown, incomplete or out of range, at a
    rule that is defined twice, and at a reference to a rule that is not defined.
    """
    rules = _Reader(text).read()
    for rule in rules.values():
        _check_references(text, rules, rule.body)
    return rules


def _check_references(text: str, rules: Mapping[str, GbnfRule], body: GbnfNode) -> None:
    todo = [body]
    while todo:
        match todo.pop():
            case Concatenation(items):
                todo += reversed(items)
            case Alternation(options):
                todo += reversed(options)
            case Repetition(item):
                todo.append(item)
            case RuleReference(name, offset) if name not in rules:
                raise GbnfError(text, offset, f"the rule `{name}` is not defined")


@dataclass(slots=True)
class _Bracket:
    """An open bracket, or a whole right side: its offset, and the items of its options so far."""

    offset: int
    options: list[list[GbnfNode]] = field(default_factory=lambda: [[]])

    def add(self, item: GbnfNode) -> None:
        self.options[-1].append(item)

    def as_node(self) -> GbnfNode:
        rows = [row[0] if len(row) == 1 else Concatenation(tuple(row)) for row in self.options]
        return rows[0] if len(rows) == 1 else Alternation(tuple(rows))


class _Reader:
    """Reads one grammar; `_at` is the offset of the next character."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def read(self) -> dict[str, GbnfRule]:
        rules: dict[str, GbnfRule] = {}
        self._skip_space()
        while self._at < len(self._text):
            head = _HEAD.match(self._text, self._at)
            if head is None:
                raise self._unexpected("a rule, as in `name ::= …`" if not rules else "a new rule")
            name, offset = head[1], self._at
            if name in rules:
                raise self._error(f"the rule `{name}` is defined twice; rename one of them")
            self._at = head.end()
            rules[name] = GbnfRule(name, offset, self._right_side())
        return rules

    def _right_side(self) -> GbnfNode:
        """Read alternatives up to the next rule; brackets are a list, so that none is too deep."""
        brackets = [_Bracket(self._at)]
        while True:
            self._skip_space()
            char = self._next()
            if char == "|":
                self._at += 1
                brackets[-1].options.append([])
            elif char == "(":
                brackets.append(self._open(len(brackets)))
            elif char == ")" and len(brackets) > 1:
                self._at += 1
                brackets[-2].add(self._repetitions(brackets.pop().as_node()))
            elif not char or char == ")" or _HEAD.match(self._text, self._at):
                break
            else:
                brackets[-1].add(self._repetitions(self._item()))
        if len(brackets) > 1:
            place = describe_place(self._text, brackets[-1].offset)
            raise self._unexpected(f"an item, or `)` for the `(` in {place}")
        return brackets[0].as_node()

    def _open(self, depth: int) -> "_Bracket":
        if self._text.startswith("(=", self._at):
            raise self._error("a lookahead `(=…)` is not supported")
        if depth > MAX_BRACKETS:
            raise self._error(f"brackets nest deeper than {MAX_BRACKETS} levels; use more rules")
        self._at += 1
        return _Bracket(self._at - 1)

    def _item(self) -> GbnfNode:
        match self._next():
            case '"':
                return self._literal()
            case "[":
                return self._class()
            case ".":
                self._at += 1
                return CharacterSet(_ANY)
            case "<":
                return self._token()
            case "!":
                raise self._error("a negated token is not supported; write a class of characters")
        name = _NAME.match(self._text, self._at)
        if name is None:
            raise self._unexpected("an item, `|` or a new rule")
        self._at = name.end()
        return RuleReference(name[0], name.start())

    def _token(self) -> GbnfNode:
        token = _TOKEN.match(self._text, self._at)
        if token is None:
            raise self._unexpected("a token, as in `<[1000]>` or `<think>`")
        self._at = token.end()
        return TokenReference(token[0])

    def _repetitions(self, item: GbnfNode) -> GbnfNode:
        """Read the operators after an item."""
        self._skip_space()
        for _ in range(_MAX_OPERATORS):
            if (operator := self._next()) in _OPERATORS:
                self._at += 1
                item = Repetition(item, *_OPERATORS[operator])
            elif operator == "{":
                item = Repetition(item, *self._counts())
            else:
                return item
            self._skip_space()
        raise self._error(f"more than {_MAX_OPERATORS} operators follow one item; use brackets")

    def _counts(self) -> tuple[int, int | None]:
        found = _COUNTS.match(self._text, self._at)
        if found is None:
            raise self._unexpected("a repetition, as in `{2}`, `{2,}` or `{2,4}`")
        numbers = [digits for digits in (found[1], found[3]) if digits is not None]
        if any(len(n.lstrip("0")) > 7 or int(n) > MAX_REPEATS for n in numbers):
            raise self._error(f"{found[0]} repeats more than {MAX_REPEATS} times")
        least = int(found[1])
        most = int(found[3]) if found[3] is not None else None if found[2] else least
        if most is not None and most < least:
            raise self._error(f"{found[0]} has a maximum below its minimum")
        self._at = found.end()
        return least, most

    def _literal(self) -> GbnfNode:
        opened, chars = self._at, []
        self._at += 1
        while self._next() != '"':
            if not self._next():
                raise GbnfError(self._text, opened, 'the literal has no closing `"`')
            code = self._character(_ESCAPES)
            chars.append(CharacterSet(((code, code),)))
        self._at += 1
        return chars[0] if len(chars) == 1 else Concatenation(tuple(chars))

    def _class(self) -> GbnfNode:
        opened, ranges = self._at, []
        self._at += 1
        is_negated = self._next() == "^"
        self._at += is_negated
        while self._next() != "]":
            if not self._next():
                raise GbnfError(self._text, opened, "the class has no closing `]`")
            ranges.append(self._range())
        self._at += 1
        found = normalized(ranges, is_negated)
        if not ranges or not found:
            shown = self._text[opened : self._at]
            raise GbnfError(self._text, opened, f"the class {_shorten(shown)} has no character")
        return CharacterSet(found)

    def _range(self) -> tuple[int, int]:
        """Read a character or a range."""
        start, escapes = self._at, _ESCAPES | _CLASS_ESCAPES
        low = high = self._character(escapes)
        if self._next() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
            self._at += 1
            high = self._character(escapes)
        if high < low:
            shown = self._text[start : self._at]
            raise GbnfError(self._text, start, f"the range {shown} is empty; swap its ends")
        return low, high

    def _character(self, escapes: Mapping[str, str]) -> int:
        """Read a character or an escape; return its code point."""
        if self._next() != "\\":
            self._at += 1
            code = ord(self._text[self._at - 1])
            if 0xD800 <= code <= 0xDFFF:
                self._at -= 1
                raise self._error(f"U+{code:04X} is a surrogate, not a character")
            return code
        escape = self._text[self._at + 1 : self._at + 2]
        if escape in _HEX_DIGITS:
            return self._hex_escape(_HEX_DIGITS[escape])
        if escape not in escapes or not escape:
            raise self._error(f"the escape `\\{escape}` is unknown; write `\\\\` for a backslash")
        self._at += 2
        return ord(escapes[escape])

    def _hex_escape(self, num_digits: int) -> int:
        shown = self._text[self._at : self._at + 2 + num_digits]
        if not re.fullmatch(rf"\\.[0-9A-Fa-f]{{{num_digits}}}", shown):
            raise self._error(f"`{shown[:2]}` needs {num_digits} hexadecimal digits after it")
        code = int(shown[2:], 16)
        if code > MAX_CODE_POINT or 0xD800 <= code <= 0xDFFF:
            raise self._error(f"`{shown}` is the code point of no character")
        self._at += len(shown)
        return code

    def _next(self) -> str:
        """Return the next character; an empty string at the end."""
        return self._text[self._at : self._at + 1]

    def _skip_space(self) -> None:
        found = _SPACE.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _error(self, reason: str) -> GbnfError:
        return GbnfError(self._text, self._at, reason)

    def _unexpected(self, expected: str) -> GbnfError:
        rest = self._text[self._at :].split("\n", 1)[0].strip()
        found = f"found `{_shorten(rest)}`" if self._next() else "the grammar ends"
        return self._error(f"expected {expected}; {found}")


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"
