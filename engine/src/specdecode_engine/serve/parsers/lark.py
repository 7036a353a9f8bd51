"""Pieces of Lark grammars for messages, in llguidance's dialect.

A marker may be a special token of the vocabulary, which no text contains, or plain text.
"""

import re
from collections.abc import Iterable, Mapping

from specdecode_engine.grammar import lark_literal

ANY_TEXT = r"(?s:.*)"
literal = lark_literal


def either(parts: Iterable[str]) -> str:
    return "(" + " | ".join(parts) + ")"


class LarkRules:
    """Rules with names of their own.

    Args:
        special_ids: the ids of special tokens by their spelling.
    """

    def __init__(self, special_ids: Mapping[str, int]) -> None:
        self._special_ids = special_ids
        self._rules: dict[str, str] = {}

    def add(self, right_side: str, prefix: str = "rule") -> str:
        """Add a rule; return its name."""
        name = f"{prefix}_{len(self._rules)}"
        self._rules[name] = f"{name}: {right_side}"
        return name

    def reserve(self) -> str:
        """Return the name of a rule to define, which may refer to itself."""
        return self.add("")

    def define(self, name: str, right_side: str) -> None:
        self._rules[name] = f"{name}: {right_side}"

    def marker(self, text: str) -> str:
        """Return what matches a marker, which may contain a special token."""
        token = self._token_in(text)
        if token is None:
            return literal(text)
        before, _, after = text.partition(token)
        parts = literal(before) if before else "", f"<[{self._special_ids[token]}]>"
        return " ".join(filter(None, (*parts, self.marker(after) if after else "")))

    def _token_in(self, text: str) -> str | None:
        """Return the special token that a text is, or contains; None without one."""
        if text in self._special_ids:
            return text
        return next((token for token in self._special_ids if token in text), None)

    @property
    def special_tokens(self) -> Iterable[str]:
        return self._special_ids.keys()

    def is_special(self, text: str) -> bool:
        """Whether a marker is or contains a special token, so that no text contains it."""
        return self._token_in(text) is not None

    def special_first(self, *markers: str) -> tuple[str, ...]:
        """Return markers, those that are special tokens before the others."""
        return tuple(sorted(markers, key=lambda marker: not self.is_special(marker)))

    def until_any(self, *markers: str) -> str:
        """Return what matches text up to the first of some markers, and that marker."""
        plain = [marker for marker in markers if not self.is_special(marker)]
        parts = [
            self._until_special(marker, ANY_TEXT, *plain)
            for marker in markers
            if self.is_special(marker)
        ]
        if plain:
            parts.append(self._lazy(ANY_TEXT, *plain))
        return either(parts)

    def until(self, marker: str, before: str = ANY_TEXT) -> str:
        """Return what matches text up to the first marker, and the marker.

        `before` is a regular expression of the text.
        """
        if self.is_special(marker):
            return self._until_special(marker, before)
        return self._lazy(before, marker)

    def text(self, *excluded: str, pattern: str = ANY_TEXT) -> str:
        """Return what matches text, without the markers that are plain text.

        `pattern` is a regular expression of the text.
        """
        plain = [marker for marker in excluded if not self.is_special(marker)]
        if not plain:
            return self._text(pattern)
        unwanted = "|".join(slashed(re.escape(marker)) for marker in plain)
        return self._terminal(f"/{pattern}/ & ~/{ANY_TEXT}({unwanted}){ANY_TEXT}/")

    def _until_special(self, marker: str, before: str, *excluded: str) -> str:
        """Return what matches text, which includes what of a marker precedes its token."""
        token = self._token_in(marker)
        assert token is not None
        begin, _, after = marker.partition(token)
        text = self.text(*excluded, pattern=before + slashed(re.escape(begin)))
        rest = self.marker(after) if after else ""
        return f"{text} {self.marker(token)} {rest}"

    def _lazy(self, before: str, *markers: str) -> str:
        ends = "|".join(slashed(re.escape(marker)) for marker in markers)
        name = f"rule_{len(self._rules)}"
        self._rules[name] = f"{name}[lazy]: /{before}({ends})/"
        return name

    def _text(self, pattern: str) -> str:
        return self._terminal(f"/{pattern}/")

    def _terminal(self, right_side: str) -> str:
        return self.add(right_side, "TEXT")

    def grammar(self, start: str) -> str:
        """Return all rules, with `start` as the right side of the first one."""
        return "\n".join([f"start: {start}", *self._rules.values()])


def slashed(pattern: str) -> str:
    return pattern.replace("/", r"\/")
