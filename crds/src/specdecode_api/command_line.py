"""Command lines: a flag is written whole, and an error repeats no word that may be a key.

argparse completes `--api-key KEY` to `--api-key-file KEY`, and repeats every word that it does not
know: a mistyped flag would show the key after it. Of a flag for a number only numbers are repeated.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from specdecode_api.key_mask import without_key

_NUMBERS: Final = {int: "write a whole number", float: "write a number"}


def bad_number(text: str, remedy: str) -> argparse.ArgumentTypeError:
    """Return the error for the value of a flag for numbers, which repeats numbers alone."""
    try:
        float(text)
    except ValueError:
        return argparse.ArgumentTypeError(f"not a number: {remedy}")
    return argparse.ArgumentTypeError(f"{text}: {remedy}")


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

    def error(self, message: str) -> NoReturn:
        """Exit with a usage error; a switch that is given a value does not repeat it."""
        super().error(re.sub(r"ignored explicit argument .*", "takes no value", message))

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as error:
            if action.type not in _NUMBERS:
                raise
            remedy = str(bad_number(arg_string, _NUMBERS[action.type]))
            raise argparse.ArgumentError(action, remedy) from error

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(value, str) and without_key(value) != value and action.choices is not None:
            choices = ", ".join(map(str, action.choices))
            raise argparse.ArgumentError(action, f"{without_key(value)}: use one of {choices}")
        super()._check_value(action, value)

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
