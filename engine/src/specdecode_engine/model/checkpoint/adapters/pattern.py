"""Numbers by the paths of modules: `rank_pattern` and `alpha_pattern` of adapter_config.json.

Keys are regular expressions that come with a download, so those that may match slowly are refused.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from specdecode_engine.model.checkpoint.config_file import ConfigFile

MAX_KEY_LENGTH = 256
MAX_KEYS = 4096
MAX_EXPRESSIONS = 16
MAX_REPETITIONS = 2
MAX_ALTERNATIONS = 2

_PLAIN = re.compile(r"[\w.-]+")
_EXPRESSION = re.compile(
    r"\^?(?:[\w-]|\\\.|(?:\.|\\[dw]|\[\^?[\w.-]+\])[*+]?|\((?:\?:)?[\w-]+(?:\|[\w-]+)*\))+\$?"
)
_REPETITIONS = re.compile(r"(?<!\\d)[*+]")  # an index has few digits
_ALTERNATIONS = re.compile(r"\((?:\?:)?([^)]*)\)")
_REMEDY = (
    f"write the path of a module, or an expression of names, dots, at most {MAX_REPETITIONS} .*, "
    f"\\d+, [...] and {MAX_ALTERNATIONS} alternations of names, such as (q|v)_proj"
)


class PatternKey(NamedTuple):
    """One key of a pattern; of several that match, the first in the file counts."""

    place: int
    expression: re.Pattern[str]
    number: float


@dataclass(frozen=True, slots=True)
class Pattern:
    """Numbers by regular expressions that match the end of a module's path, as in peft."""

    plain: Mapping[int, tuple[PatternKey, ...]]  # by the length of what they match
    expressions: tuple[PatternKey, ...]

    @classmethod
    def read(cls, file: ConfigFile, key: str, *, are_integers: bool = False) -> "Pattern":
        """Read one of the two patterns, empty if absent.

        Raises:
            ConfigError: a key may match slowly or is malformed, or a number is not valid.
        """
        section = file.section(key)
        if section is None:
            return cls({}, ())
        if len(section.keys) > MAX_KEYS:
            raise file.error(key, f"at most {MAX_KEYS} keys are supported: write one for a module")
        read = section.integer if are_integers else section.real
        plain: dict[int, tuple[PatternKey, ...]] = {}
        expressions: list[PatternKey] = []
        for place, name in enumerate(section.keys):
            one = PatternKey(place, _compile(section, name), read(name))
            if _PLAIN.fullmatch(name):
                plain[len(name)] = (*plain.get(len(name), ()), one)
            else:
                expressions.append(one)
        if len(expressions) > MAX_EXPRESSIONS:
            remedy = f"at most {MAX_EXPRESSIONS} expressions are supported; write paths of modules"
            raise file.error(key, remedy)
        return cls(plain, tuple(expressions))

    def of(self, path: str) -> tuple[float, ...]:
        """Return the numbers of all keys that match the end of a path, in the file's order."""
        places = [0, *(match.end() for match in re.finditer(r"\.", path))]
        found = [
            one
            for start in places
            for one in (*self.plain.get(len(path) - start, ()), *self.expressions)
            if one.expression.fullmatch(path, start)
        ]
        return tuple(dict(sorted((one.place, one.number) for one in found)).values())


def _compile(section: ConfigFile, name: str) -> re.Pattern[str]:
    alternations = [found.split("|") for found in _ALTERNATIONS.findall(name)]
    is_slow = (
        len(name) > MAX_KEY_LENGTH
        or not _EXPRESSION.fullmatch(name)
        or len(_REPETITIONS.findall(name)) > MAX_REPETITIONS
        or len(alternations) > MAX_ALTERNATIONS
        or any(map(_is_ambiguous, alternations))
    )
    if is_slow:
        raise section.error(name, f"the key is not supported, or may match slowly; {_REMEDY}")
    try:
        return re.compile(name)
    except re.error as error:
        raise section.error(
            name, f"the key is not a regular expression ({error}); {_REMEDY}"
        ) from None


def _is_ambiguous(words: list[str]) -> bool:
    """Whether one text may begin with two of the words, other than numbers."""
    ordered = sorted(words)
    return any(
        second == first or (second.startswith(first) and not second.isdecimal())
        for first, second in pairwise(ordered)
    )
