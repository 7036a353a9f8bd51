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
        """Return what matches a marker."""
        token_id = self._special_ids.get(text)
        return literal(text) if token_id is None else f"<[{token_id}]>"

    @property
    def special_tokens(self) -> Iterable[str]:
        return self._special_ids.keys()

    def is_special(self, text: str) -> bool:
        return text in self._special_ids

    def special_first(self, *markers: str) -> tuple[str, ...]:
        """Return markers, those that are special tokens before the others."""
        return tuple(sorted(markers, key=lambda marker: not self.is_special(marker)))

    def until_any(self, *markers: str) -> str:
        """Return what matches text up to the first of some markers, and that marker."""
        plain = [marker for marker in markers if not self.is_special(marker)]
        parts = [
            f"{self.text(*plain)} {self.marker(marker)}"
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
            return f"{self._text(before)} {self.marker(marker)}"
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
