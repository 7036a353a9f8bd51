"""The flags of a command line, each with its row of the flag table."""

import difflib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from specdecode_api.peer_flags import (
    Peer,
    PeerFlag,
    Takes,
    is_flag,
    normalized,
    read_peer_flags,
)
from specdecode_operator.convert.errors import ConvertError
from specdecode_operator.convert.program import ServerCommand
from specdecode_operator.convert.secrets import is_secret_name, shown

MODEL: Final = "--model-path"
"""The row of --model."""
API_KEY: Final = "--api-key"
_CONFIG: Final = "--config"
_APPENDED: Final = frozenset({"--middleware"})
"""Flags that add a value each time."""

ReadFile = Callable[[str], str]
"""From a path to the text; OSError or UnicodeDecodeError if it cannot be read."""


@dataclass(frozen=True, slots=True)
class Option:
    """A flag as it was given."""

    row: PeerFlag
    name: str
    words: tuple[str, ...]
    """Its values; `true` or `false` for a switch."""
    key: str = ""
    """After a dot, for a key of a JSON object."""

    @property
    def flag(self) -> str:
        """The flag under its own name."""
        return self.row.flag

    @property
    def is_secret(self) -> bool:
        """Whether its values are keys by their name."""
        return self.row.is_secret or self.flag == API_KEY or is_secret_name(self.key)

    @property
    def shown(self) -> str:
        """Its values for people, without keys."""
        if self.row.is_switch:
            return ""
        return "<secret>" if self.is_secret else shown(self.words)

    @property
    def given(self) -> str:
        """The flag with its values for people."""
        base, dot, key = self.name.partition(".")
        return f"{base}{dot}{shown([key])} {self.shown}".rstrip()


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """A command line: the model, and each flag once."""

    model: str
    options: tuple[Option, ...]

    def of(self, flag: str) -> Option | None:
        """The option of a flag, if it was given."""
        return next((each for each in self.options if each.flag == flag), None)


def read_options(command: ServerCommand, read_file: ReadFile) -> ReadOptions:
    """Read all flags; of a flag that is given twice the last one counts, as for vLLM.

    Raises:
        ConvertError: with every unknown flag, missing value and word that belongs to no flag.
    """
    reader = FlagReader(command.words)
    reader.read()
    words = list[str]()
    errors = list(reader.errors)
    for option in reader.options:
        if option.flag == _CONFIG:
            words += _config_words(option.words[0], read_file)
    config = FlagReader(words, _CONFIG)
    config.read()
    errors += config.errors
    if any(option.flag == _CONFIG for option in config.options):
        errors.append(f"{_CONFIG}: the file names another file; write its flags into this one")
    # Flags of the command line come after those of the file, and win.
    given = {
        (each.flag, each.words if each.flag in _APPENDED else each.key): each
        for each in (*config.options, *reader.options)
    }
    options = tuple(each for each in given.values() if each.flag not in (MODEL, _CONFIG))
    model = _model(command, reader, given.get((MODEL, "")), errors)
    if errors:
        raise ConvertError(*errors)
    return ReadOptions(model, options)


def _model(
    command: ServerCommand, reader: "FlagReader", flag: Option | None, errors: list[str]
) -> str:
    positional = reader.others[:1] if command.takes_model else []
    extra = len(reader.others) - len(positional)
    if extra:
        errors.append(
            f"{extra} word{'s belong' if extra > 1 else ' belongs'} to no flag: remove what is not "
            "meant, or quote values with blanks"
        )
    if positional and any(each.flag == MODEL for each in reader.options):
        errors.append("the model is given twice, as a word and by --model: remove one of them")
    if positional:
        return positional[0]
    if flag is not None:
        return flag.words[0]
    errors.append("no model is named: write it after vllm serve, before the flags")
    return ""


class FlagReader:
    """Walks over the words once."""

    def __init__(self, words: Sequence[str], file_of: str = "") -> None:
        self._rows = read_peer_flags().by_spelling()
        self._words, self._next = words, 0
        self._place = f"{file_of}: " if file_of else ""
        self.options: list[Option] = []
        self.others: list[str] = []
        self.errors: list[str] = []

    def read(self) -> None:
        while self._next < len(self._words):
            word = self._words[self._next]
            self._next += 1
            if not is_flag(word):
                self.others.append(word)
                continue
            name, separator, value = normalized(word).partition("=")
            row, is_on = self._rows.get(name.partition(".")[0], (None, True))
            if row is None or Peer.VLLM not in row.peers:
                self.errors.append(self._place + _unknown(name, row, self._rows))
                self._skip_values()
            else:
                self._option(row, name, is_on, [value] if separator else None)

    def _option(self, row: PeerFlag, name: str, is_on: bool, given: list[str] | None) -> None:
        if row.is_switch and given is None:
            values = [str(is_on).lower()]
        elif row.is_switch:
            self.errors.append(f"{self._place}{name} takes no value: write it alone")
            return
        else:
            values = self._values(row.takes) if given is None else given
        if not values and row.takes is not Takes.OPTIONAL:
            self.errors.append(f"{self._place}{name}: a value is missing after it; add it")
            return
        self.options.append(Option(row, name, tuple(values), name.partition(".")[2]))

    def _values(self, takes: Takes) -> list[str]:
        most = len(self._words) if takes is Takes.VALUES else self._next + 1
        start = self._next
        while self._next < min(most, len(self._words)) and not is_flag(self._words[self._next]):
            self._next += 1
        return list(self._words[start : self._next])

    def _skip_values(self) -> None:
        """Leave out the words after an unknown flag, which would be reported a second time."""
        while self._next < len(self._words) and not is_flag(self._words[self._next]):
            self._next += 1


def _unknown(name: str, row: PeerFlag | None, rows: Mapping[str, tuple[PeerFlag, bool]]) -> str:
    version = read_peer_flags().versions[Peer.VLLM]
    if row is not None:
        return f"{name} is a flag of SGLang, and vLLM has none of this name: remove it"
    if not name.startswith("--"):
        return f"{name[:2]}… is not a flag of vLLM {version}: write the flag's long name"
    known = [spelling for spelling, (each, _) in rows.items() if Peer.VLLM in each.peers]
    close = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {close[0]}? " if close else ""
    text = name if len(name) <= 60 and name.isprintable() else f"{name[:10]!r}…"
    return f"{text} is not a flag of vLLM {version}: {hint}correct or remove it"


def _config_words(path: str, read_file: ReadFile) -> list[str]:
    """Read the flags of a file of --config in the form of words.

    Raises:
        ConvertError: the file is not there, or is not a YAML mapping.
    """
    where = f"--config {shown([path])}"
    try:
        text = read_file(path)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConvertError(
            f"{where} cannot be read here: {why}; copy the file here, or write its flags into the "
            "command line"
        ) from None
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):
            raise ConvertError(f"{where} has aliases (*NAME): write the values themselves")
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f" (line {mark.line + 1})"
        raise ConvertError(f"{where} is not YAML{line}: correct it") from None
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise ConvertError(f"{where}: write a mapping from the names of flags to their values")
    return [word for key, value in document.items() for word in _words_of(key, value)]


def _words_of(key: str, value: Any) -> Iterator[str]:
    """Write an entry of a file as vLLM does."""
    flag = normalized(f"--{key}")
    if isinstance(value, bool):
        row, _ = read_peer_flags().by_spelling().get(flag, (None, True))
        if value:
            yield flag
        elif row is None or row.takes is Takes.BOOLEAN:
            yield f"--no-{key}"
    elif isinstance(value, list):
        if value:
            yield from (flag, *map(str, value))
    elif value is not None:
        text = json.dumps(value) if isinstance(value, dict) else str(value)
        yield f"{flag}={text}"
