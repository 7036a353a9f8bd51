"""Command lines: a flag is written whole, and an unknown word is not repeated in the error.

argparse completes `--api-key KEY` to `--api-key-file KEY`, and repeats every word that it does not
know: a mistyped flag would show the key after it.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any


class ArgumentParser(argparse.ArgumentParser):
    """Refuses abbreviations, naming the flags that they may mean; so do its subcommands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    @property
    def flags(self) -> frozenset[str]:
        """Every name of a flag."""
        return frozenset(self._option_string_actions)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        words = sys.argv[1:] if args is None else list(args)
        self._refuse_abbreviations(words)
        return super().parse_known_args(words, namespace)

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        words = sys.argv[1:] if args is None else list(args)
        found, left = self.parse_known_args(words, namespace)
        if left:
            # The first word stands where a command does, and after no flag.
            named = [_flag(each) for each in left if each.startswith("-") or each == words[0]]
            others = ["words that belong to no flag"] if len(named) < len(left) else []
            self.error(f"unrecognized arguments: {', '.join([*named, *others])}; see --help")
        return found

    def _refuse_abbreviations(self, words: Sequence[str]) -> None:
        """Check the words before a command, whose own parser checks what follows."""
        commands = [each for each in self._actions if isinstance(each, argparse._SubParsersAction)]
        known = self._option_string_actions
        for word in words:
            if word == "--" or any(word in each.choices for each in commands):
                return
            flag = _flag(word)
            whole = sorted(each for each in known if each.startswith(flag))
            if flag.startswith("--") and flag not in known and whole:
                self.error(f"{flag} is an abbreviation: write {' or '.join(whole)}")


def _flag(word: str) -> str:
    return word.partition("=")[0]
