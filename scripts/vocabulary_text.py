"""Finds the prose of a file: strings and comments of Python, Markdown outside code, YAML."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

_FENCE = re.compile(r"^(?P<fence> *(?:```+|~~~+)).*?^ *(?:```+|~~~+) *$", re.MULTILINE | re.DOTALL)
_INDENTED_CODE = re.compile(r"(?:(?<=\n\n)|\A)(?:(?: {4}|\t).*\n?)+")
_CODE_SPAN = re.compile(r"(`+)(?!`)(?:(?!\n\n).)+?(?<!`)\1(?!`)", re.DOTALL)
_LINK_TARGET = re.compile(r"(?<=\])\([^)\s]*\)|https?://\S+")
_KEY = re.compile(r"^[ \t-]*[\w.]+(?=:)", re.MULTILINE)
_MARKDOWN = (".md",)
_CONFIGURATION = (".yaml", ".yml", ".tpl", ".txt", ".toml")


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of prose.

    `source` has the lines `first_line` to `last_line` of the file; `is_exact` means that the
    text's lines are those lines.
    """

    text: str
    first_line: int
    last_line: int
    source: tuple[str, ...]
    is_string: bool = False
    is_exact: bool = True

    def line_of(self, offset: int, found: str) -> int:
        """Return the line of the file that has the text at an offset."""
        if self.is_exact:
            return self.first_line + self.text.count("\n", 0, offset)
        first_word = found.split()[0]
        for number, line in enumerate(self.source):
            if first_word in line:
                return self.first_line + number
        return self.first_line


def has_prose(file: str) -> bool:
    """Whether a file is of a kind whose prose is checked."""
    return file.endswith((".py", *_MARKDOWN, *_CONFIGURATION, "Makefile"))


def passages_of(file: str, text: str) -> Iterator[Passage]:
    """Yield the prose of a file; none for a kind of file that has no prose."""
    if file.endswith(".py"):
        yield from _strings(text)
        yield from _comments(text)
    elif file.endswith(_MARKDOWN):
        yield _whole(without_code(text))
    elif file.endswith("Makefile"):
        yield _whole("\n".join(line.partition("#")[2] for line in text.splitlines()))
    elif file.endswith(_CONFIGURATION):
        yield _whole(_blanked(_CODE_SPAN, _blanked(_KEY, text)))


def without_code(text: str) -> str:
    """Blank code blocks, code spans, HTML comments' marks and link targets; lines stay in place."""
    for pattern in (_FENCE, _INDENTED_CODE, _CODE_SPAN, _LINK_TARGET):
        text = _blanked(pattern, text)
    return text


def _whole(text: str) -> Passage:
    return Passage(text, 1, text.count("\n") + 1, ())


def _blanked(pattern: re.Pattern[str], text: str) -> str:
    return pattern.sub(lambda match: re.sub(r"[^\n]", "\0", match[0]), text)


def _strings(text: str) -> Iterator[Passage]:
    """Yield strings that hold a blank: a single word is a name or a value, not prose."""
    lines = text.splitlines()
    tree = ast.parse(text)
    inside = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
        if part is not node
    }
    for node in ast.walk(tree):
        value = _value(node)
        if value is None or id(node) in inside or not re.search(r"\S\s+\S", value):
            continue
        assert isinstance(node, ast.expr)
        last = node.end_lineno or node.lineno
        source = tuple(lines[node.lineno - 1 : last])
        is_exact = value.count("\n") == last - node.lineno
        value = _blanked(_CODE_SPAN, value)
        yield Passage(value, node.lineno, last, source, is_string=True, is_exact=is_exact)


def _value(node: ast.AST) -> str | None:
    """Return a string's text; what an f-string formats is left out."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
        return "".join(str(part) for part in parts)
    return None


def _comments(text: str) -> Iterator[Passage]:
    """Yield comments; those on lines that follow one another are one passage."""
    block, first, last = list[str](), 0, 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        if block and token.start[0] != last + 1:
            yield Passage(_blanked(_CODE_SPAN, "\n".join(block)), first, last, ())
            block = []
        first = first if block else token.start[0]
        last = token.start[0]
        block.append(token.string.lstrip("#"))
    if block:
        yield Passage(_blanked(_CODE_SPAN, "\n".join(block)), first, last, ())
