"""Random GBNF grammars with the texts that they match, by a recognizer of their own.

A grammar is made as a tree and written as text, so that nothing here depends on a parser.
"""

import random
import string
from dataclasses import dataclass
from typing import Literal

_NAMES = ("item", "Item", "ITEM", "foo-bar", "foo_bar", "start", "T0", "r1")
_ALPHABET = 'aabbcxyz019 -]^&"\\/.é日😀\n\t\x7f'
_SEPARATORS = (" ", " ", "  ", "\n  ", " # a | b\n  ")
_MAX_DEPTH = 3


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a grammar.

    Attributes:
        kind: what it matches: `text`; one character of `text` or, `is_negated`, any other one; the
            rule `text`; all parts; one of the parts; or its only part repeated.
        most: of a repetition; None is any number.
    """

    kind: Literal["text", "class", "rule", "all", "one", "repeat"]
    text: str = ""
    is_negated: bool = False
    parts: tuple["Part", ...] = ()
    least: int = 0
    most: int | None = None


@dataclass(frozen=True, slots=True)
class RandomGrammar:
    """Rules by name, of which `root` is the first, and how they are written."""

    rules: dict[str, Part]
    source: str

    def draw(self, rng: random.Random) -> str:
        """Return a text that the grammar matches, the shortest of a few."""
        texts = [_draw(rng, self.rules, self.rules["root"], 0) for _ in range(3)]
        return min(texts, key=len)

    def matches(self, text: str) -> bool:
        """Return whether the grammar matches a text, by all ends of all parts at all places."""
        return len(text) in _Recognizer(self.rules, text).ends("root")


def make_grammar(rng: random.Random) -> RandomGrammar:
    """Return a grammar whose rules all match some text: the first option of each refers to none."""
    names = ["root", *rng.sample(_NAMES, rng.randint(0, 4))]
    rules = {}
    for name in names:
        options = [_make_row(rng, [], 1)]
        options += [_make_row(rng, names, 1) for _ in range(rng.randint(0, 3))]
        rules[name] = Part("one", parts=tuple(options))
    order = rng.sample(names, len(names))
    return RandomGrammar(rules, "\n".join(f"{n} ::= {_write(rng, rules[n], 0)}" for n in order))


def disturb(rng: random.Random, text: str) -> str:
    """Change, insert or remove a character, or cut the text."""
    at, char = rng.randrange(len(text) + 1), rng.choice(_ALPHABET)
    before, after = text[:at], text[at:]
    changes = [before + char + after, before + after[1:], before + char + after[1:], before]
    return rng.choice([*changes, text + before])


def _make_row(rng: random.Random, names: list[str], depth: int) -> Part:
    parts = tuple(_make_part(rng, names, depth) for _ in range(rng.randint(1, 3)))
    return Part("all", parts=parts)


def _make_part(rng: random.Random, names: list[str], depth: int) -> Part:
    choice = rng.random()
    if depth < _MAX_DEPTH and choice < 0.2:
        rows = tuple(_make_row(rng, names, depth + 1) for _ in range(rng.randint(1, 3)))
        part = Part("one", parts=rows)
    elif names and choice < 0.5:
        part = Part("rule", rng.choice(names))
    elif choice < 0.7:
        chars = "".join(rng.choice(_ALPHABET) for _ in range(rng.randint(1, 4)))
        part = Part("class", chars, is_negated=rng.random() < 0.2)
    else:
        part = Part("text", "".join(rng.choice("aab]\\é-日c") for _ in range(rng.randint(1, 3))))
    if rng.random() < 0.3:
        counts = [(0, None), (1, None), (0, 1), (2, 2), (0, 0), (1, 3), (2, None), (0, 12)]
        least, most = rng.choice(counts)
        part = Part("repeat", parts=(part,), least=least, most=most)
    return part


def _write(rng: random.Random, part: Part, depth: int) -> str:
    separator = rng.choice(_SEPARATORS)
    inner = [_write(rng, each, depth + 1) for each in part.parts]
    match part.kind:
        case "text":
            return f'"{_spell_all(rng, part.text, chr(34) + chr(92))}"'
        case "class":
            spelled = _spell_all(rng, part.text, "\\]^-[")
            return f"[{'^' * part.is_negated}{spelled}]"
        case "rule":
            return part.text
        case "all":
            return " ".join(inner)
        case "one":
            text = (separator + "| ").join(inner)
            return text if not depth else f"({text})"
    counts = f"{{{part.least},{'' if part.most is None else part.most}}}"
    if part.least == part.most:
        counts = f"{{{part.least}}}"
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((part.least, part.most), counts)
    return inner[0] + rng.choice([short, counts])


def _spell_all(rng: random.Random, text: str, special: str) -> str:
    """Write characters as they are or escaped, those in `special` always escaped."""
    spelled = ""
    for char in reversed(text):
        code = ord(char)
        spellings = [f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08X}"]
        # xgrammar's \x takes any number of digits, llama.cpp's takes two.
        if code < 0x100 and spelled[:1] not in set(string.hexdigits):
            spellings.append(f"\\x{code:02X}")
        if char in '"\\]-[' and char in special:
            spellings.append("\\" + char)
        elif char in "\n\t":
            spellings.append(repr(char)[1:-1])
        elif char not in special and char.isprintable():
            spellings += [char] * 5
        spelled = rng.choice(spellings) + spelled
    return spelled


def _draw(rng: random.Random, rules: dict[str, Part], part: Part, depth: int) -> str:
    match part.kind:
        case "text":
            return part.text
        case "class":
            others = [char for char in _ALPHABET + "q" if char not in part.text]
            return rng.choice(others if part.is_negated else part.text)
        case "rule":
            return _draw(rng, rules, rules[part.text], depth + 1)
        case "all":
            return "".join(_draw(rng, rules, each, depth + 1) for each in part.parts)
        case "one":
            options = part.parts[:1] if depth > 8 else part.parts
            return _draw(rng, rules, rng.choice(options), depth + 1)
    most = part.least + 2 if part.most is None else part.most
    count = part.least if depth > 8 else rng.randint(part.least, min(most, part.least + 2))
    return "".join(_draw(rng, rules, part.parts[0], depth + 1) for _ in range(count))


class _Recognizer:
    """Finds where a rule can end, from each place, by repetition until nothing is new."""

    def __init__(self, rules: dict[str, Part], text: str) -> None:
        self._rules, self._text = rules, text
        self._known: dict[tuple[str, int], set[int]] = {}
        self._has_grown = False

    def ends(self, name: str) -> set[int]:
        self._has_grown = True
        self._known[name, 0] = set()
        while self._has_grown:
            self._has_grown = False
            for (rule, start), known in list(self._known.items()):
                found = self._after(self._rules[rule], {start})
                self._has_grown |= not found <= known
                known |= found
        return self._known[name, 0]

    def _after(self, part: Part, starts: set[int]) -> set[int]:
        match part.kind:
            case "text":
                length = len(part.text)
                return {at + length for at in starts if self._text.startswith(part.text, at)}
            case "class":
                inside = (at for at in starts if at < len(self._text))
                return {at + 1 for at in inside if (self._text[at] in part.text) != part.is_negated}
            case "rule":
                return set[int]().union(*(self._rule(part.text, start) for start in starts))
            case "one":
                return set[int]().union(*(self._after(each, starts) for each in part.parts))
            case "all":
                for each in part.parts:
                    starts = self._after(each, starts)
                return starts
        return self._repeated(part, starts)

    def _repeated(self, part: Part, starts: set[int]) -> set[int]:
        found: set[int] = set(starts) if not part.least else set()
        # As many more repetitions as there are characters reach every end.
        most = part.least + len(self._text) + 1 if part.most is None else part.most
        for count in range(1, most + 1):
            starts = self._after(part.parts[0], starts)
            if count >= part.least and starts <= found:
                break
            found |= starts if count >= part.least else set()
        return found

    def _rule(self, name: str, start: int) -> set[int]:
        if (name, start) not in self._known:
            self._known[name, start] = set()
            self._has_grown = True
        return self._known[name, start]
