"""Splits a command line into words as POSIX shells quote them, and runs nothing.

What a shell would replace or run (variables, other commands, patterns) is refused. Errors have the
place of a character and none of the words, which may be keys.
"""

import re
from typing import Final

from specdecode_operator.convert.errors import ConvertError

MAX_CHARACTERS: Final = 65_536

_MEANINGS: Final = {
    ";": "separates commands: write the command line of vLLM alone",
    "&": "separates commands: write the command line of vLLM alone",
    "|": "separates commands: write the command line of vLLM alone",
    "<": "redirects, or marks a place to fill in: write the value itself, or quote it with '",
    ">": "redirects, or marks a place to fill in: write the value itself, or quote it with '",
    "(": "begins a group of commands: write the command line of vLLM alone, and quote values "
    "with '",
    ")": "ends a group of commands: write the command line of vLLM alone, and quote values with '",
    "`": "runs another command: write its result",
    "*": "is replaced by names of files: quote it with '",
    "?": "is replaced by names of files: quote it with '",
    "[": "is replaced by names of files: quote the list with '",
    "{": "is replaced by a shell: quote JSON with '",
}
_VARIABLE: Final = (
    "is replaced by a shell: write the value itself (of a key any text will do, because only a "
    "Secret contains it), or quote it with '"
)
_HOME: Final = "is the home folder in a shell: write the path"
_SECOND: Final = (
    "begins a second command: write the command line of vLLM alone; a \\ that continues a line is "
    "its last character"
)


def split_command(text: str) -> list[str]:
    """Return the words of one command; comments and continued lines are understood.

    Raises:
        ConvertError: the text is a script or a template, or a quote has no end.
    """
    lines = text.replace("\r\n", "\n").strip()
    _refuse_text(lines)
    return _Splitter(lines).split()


def _refuse_text(text: str) -> None:
    if len(text) > MAX_CHARACTERS:
        raise ConvertError(
            f"the command line has {len(text)} characters, more than {MAX_CHARACTERS}: shorten it"
        )
    if found := re.search(r"\{\{|\{%", text):
        raise ConvertError(
            f"character {found.start() + 1} begins a template: render it first, and convert the "
            "command line in it"
        )
    if found := re.search("[“”„‘’]", text):
        raise ConvertError(
            f"character {found.start() + 1} is a typographic quote, which no shell reads as one: "
            "write \" or '"
        )
    if found := re.search(r"(?<!\S)[‐-―−]", text):
        raise ConvertError(
            f"character {found.start() + 1} is a typographic dash: flags begin with -"
        )
    if found := re.search(r"[^\S \t\n]|[\x00-\x08\x0e-\x1f\x7f]", text):
        raise ConvertError(
            f"character {found.start() + 1} is neither printable nor a blank: remove it"
        )


class _Splitter:
    """Walks over the characters once."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._words: list[str] = []
        self._word: list[str] | None = None  # of the word at hand; None between words
        self._is_complete = False  # whether a line has ended the command

    def split(self) -> list[str]:
        while self._at < len(self._text):
            self._step(self._text[self._at])
        self._end_word()
        return self._words

    def _step(self, char: str) -> None:
        if char in " \t":
            self._end_word()
        elif char == "\n":
            self._end_word()
            self._is_complete = bool(self._words)
        elif char == "#" and self._word is None:
            end = self._text.find("\n", self._at)
            self._at = (end if end >= 0 else len(self._text)) - 1
        elif char == "\\":
            self._escape()
            return
        elif self._is_complete:
            raise self._error(_SECOND)
        elif char == "'":
            self._single()
        elif char == '"':
            self._double()
        else:
            self._plain(char)
        self._at += 1

    def _plain(self, char: str) -> None:
        if char in _MEANINGS:
            raise self._error(f"{char} {_MEANINGS[char]}")
        if char == "$":
            self._refuse_variable("'\"")
        if char == "~" and (self._word is None or self._word[-1:] == ["="]):
            raise self._error(f"~ {_HOME}")
        self._add(char)

    def _escape(self) -> None:
        """Read a backslash outside of quotes."""
        after = self._text[self._at + 1 : self._at + 2]
        self._at += 2
        if after == "\n":
            return
        if self._is_complete:
            self._at -= 2
            raise self._error(_SECOND)
        self._add(after or "\\")

    def _single(self) -> None:
        end = self._text.find("'", self._at + 1)
        if end < 0:
            raise self._error("this quote has no end: add ' after the value")
        self._add(self._text[self._at + 1 : end])
        self._at = end

    def _double(self) -> None:
        start = self._at
        self._add("")
        self._at += 1
        while self._text[self._at : self._at + 1] not in ('"', ""):
            char, after = self._text[self._at], self._text[self._at + 1 : self._at + 2]
            if char == "\\" and after in ("$", "`", '"', "\\", "\n"):
                self._add("" if after == "\n" else after)
                self._at += 2
                continue
            if char == "`":
                raise self._error(f"` {_MEANINGS['`']}")
            if char == "$":
                self._refuse_variable("")
            self._add(char)
            self._at += 1
        if self._at >= len(self._text):
            self._at = start
            raise self._error('this quote has no end: add " after the value')

    def _refuse_variable(self, quotes: str) -> None:
        """Refuse a $ that a shell replaces; one before a blank is a character."""
        after = self._text[self._at + 1 : self._at + 2]
        if after.isalnum() or (after and after in "_({?*@#!$-" + quotes):
            raise self._error(f"$ {_VARIABLE}")

    def _add(self, text: str) -> None:
        self._word = [*(self._word or []), text]

    def _end_word(self) -> None:
        if self._word is not None:
            self._words.append("".join(self._word))
        self._word = None

    def _error(self, reason: str) -> ConvertError:
        return ConvertError(f"character {self._at + 1} of the command line: {reason}")
