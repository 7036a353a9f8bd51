"""Rules of `engine.extraArgs`: arguments of vLLM that the operator sets, in every spelling.

vLLM's parser also accepts the beginning of a flag, `_` for `-`, `--FLAG=VALUE`, `--FLAG.KEY=VALUE`,
and the value of a flag of one letter right after the letter.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

from specdecode_api.rules import Rule
from specdecode_api.v1alpha1.runtimes import OPERATORS_ARGUMENTS, OWNED_ARGUMENTS

END_OF_FLAGS: Final = "--(no[-_])?"
"""`--`, after which every word would be a positional argument, also those of the operator."""


def argument_rules() -> tuple[Rule[Any], ...]:
    """Rules of `engine.extraArgs`: arguments that the operator owns."""
    by_field = (
        _argument_rule(
            spellings(flags),
            f"extraArgs has an argument that {field} sets ({', '.join(flags)}), or its beginning: "
            f"remove it and use {field}",
        )
        for field, flags in OWNED_ARGUMENTS.items()
    )
    own = _argument_rule(
        f"{spellings(OPERATORS_ARGUMENTS)}|{END_OF_FLAGS}",
        f"extraArgs has an argument that only the operator sets ({', '.join(OPERATORS_ARGUMENTS)}"
        "), its beginning, or --: remove it",
    )
    return (*by_field, own)


def spellings(flags: Iterable[str]) -> str:
    """A regular expression of all words by which vLLM's parser may take one of the flags."""
    long = [flag[2:] for flag in flags if flag.startswith("--")]
    short = [flag[1:] for flag in flags if not flag.startswith("--")]
    names = [f"--(no[-_])?({_beginnings(long)})"] if long else []
    names += [f"-({_beginnings(short)})"] if short else []
    joined = "".join(name for name in short if len(name) == 1)
    values = f"|-[{joined}].*" if joined else ""
    return f"({'|'.join(names)})([=.].*)?{values}"


def _beginnings(words: Iterable[str]) -> str:
    """A regular expression of the words and all their beginnings but the empty one."""
    rests: dict[str, list[str]] = {}
    for word in words:
        rests.setdefault(word[0], []).append(word[1:])
    branches = []
    for letter, after in rests.items():
        longer = [rest for rest in after if rest]
        more = f"({_beginnings(longer)})?" if longer else ""
        branches.append(("[-_]" if letter == "-" else letter) + more)
    return "|".join(branches)


def _argument_rule(spelled: str, message: str) -> Rule[Any]:
    # A value may have line breaks, which `.` includes by the flag s alone.
    pattern = f"^(?s:{spelled})$"
    compiled = re.compile(pattern)
    return Rule(
        cel=f"!has(self.extraArgs) || !self.extraArgs.exists(a, a.matches('{pattern}'))",
        holds=lambda it: not any(compiled.fullmatch(word) for word in it.extra_args),
        message=message,
        field="extraArgs",
        reason="FieldValueForbidden",
    )
