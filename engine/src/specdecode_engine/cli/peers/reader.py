"""Reads the flags of vLLM and SGLang: each sets a field, is ignored with a log line, or refused.

What is left of the command line is the engine's own flags.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdecode_api.key_mask import without_key
from specdecode_api.peer_flags import (
    PeerFlag,
    Takes,
    Treatment,
    is_flag,
    normalized,
    read_peer_flags,
)
from specdecode_api.peer_values import (
    CONVERSIONS,
    MODELOPT,
    STORED_QUANTIZATION,
    stored_method,
)
from specdecode_engine.cli.peers.speculative_config import read_config, read_document


@dataclass(frozen=True, slots=True)
class Setting:
    """The value of a field, and the flag as it was given."""

    flag: str
    value: object


@dataclass(slots=True)
class PeerArguments:
    """What the flags of vLLM and SGLang have become."""

    words: list[str] = field(default_factory=list)  # of the engine's own flags
    settings: dict[str, Setting] = field(default_factory=dict)  # by field of the boot file
    mistakes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def set(self, flag: str, values: Mapping[str, object]) -> None:
        """Set fields; two flags may give a field the same value alone, and objects are merged."""
        for place, value in values.items():
            other = self.settings.get(place)
            if other is not None and isinstance(value, dict) and isinstance(other.value, dict):
                self._merge(flag, place, value, other.value)
                continue
            if other is not None and other.flag != flag and other.value != value:
                self.mistakes.append(conflict(flag, value, other.flag, other.value))
            self.settings[place] = Setting(flag, value)

    def _merge(self, flag: str, place: str, new: dict[str, object], old: dict[str, object]) -> None:
        for name in sorted(key for key in new.keys() & old.keys() if new[key] != old[key]):
            self.mistakes.append(f"{flag}: {name} is given twice; rename one")
        self.settings[place] = Setting(flag, old | new)


def conflict(flag: str, value: object, other: str, other_value: object) -> str:
    """Word the error of two flags that set one field."""
    given, other_given = without_key(str(value)), without_key(str(other_value))
    return f"{flag} {given}: {other} is {other_given}; remove one of them"


def read_peer_flags_of(words: Sequence[str], own_flags: Collection[str]) -> PeerArguments:
    """Read every flag that has a row; leave the engine's own flags to its parser.

    Args:
        own_flags: those of the engine, of which underscores are read as hyphens too.
    """
    return _PeerFlagReader(words, own_flags).read()


class _PeerFlagReader:
    """Walks over the words once."""

    def __init__(self, words: Sequence[str], own_flags: Collection[str]) -> None:
        self._rows = read_peer_flags().by_spelling()
        self._own = own_flags
        self._words, self._next = words, 0
        self._read = PeerArguments()
        self._config = dict[str, Any]()  # of --speculative-config, key by key
        self._left = dict[str, tuple[str, list[str]]]()  # name and values by the engine's flag
        self._seen = set[str]()

    def read(self) -> PeerArguments:
        while self._next < len(self._words):
            word = self._words[self._next]
            self._next += 1
            name, separator, value = normalized(word).partition("=")
            base = name.partition(".")[0]
            if base in self._rows:
                self._read_row(name, [value] if separator else [], has_value=bool(separator))
            elif name in self._own:
                self._read.words.append(f"{name}{separator}{value}")
            else:
                self._read.words.append(word)
        self._read_config()
        return self._read

    def _read_row(self, name: str, values: list[str], *, has_value: bool) -> None:
        base, _, key = name.partition(".")
        row, is_on = self._rows[base]
        if row.is_switch:
            if has_value:
                self._read.mistakes.append(f"{name} takes no value: write it alone")
                return
            words = [str(is_on).lower()]
        else:
            words = values or self._values(row.takes)
            if not words and row.takes is not Takes.OPTIONAL:
                self._read.mistakes.append(f"{name}: a value is missing after it; add it")
                return
        if key:
            self._read_key(row, name, key, words)
        else:
            self._treat(row, name, words)

    def _values(self, takes: Takes) -> list[str]:
        """Take the words that belong to the flag."""
        end = self._next
        most = len(self._words) if takes is Takes.VALUES else self._next + 1
        while end < min(most, len(self._words)) and not is_flag(self._words[end]):
            end += 1
        found = list(self._words[self._next : end])
        self._next = end
        return found

    def _read_key(self, row: PeerFlag, name: str, key: str, words: list[str]) -> None:
        """Read a flag with a key of its JSON object, as in --speculative-config.method."""
        if row.conversion != "speculative_config":
            self._treat(row, name, words)
            return
        try:
            self._config[key] = json.loads(words[0])
        except ValueError:
            self._config[key] = words[0]

    def _treat(self, row: PeerFlag, name: str, words: list[str]) -> None:
        given = _given(row, name, words)
        if row.treatment is Treatment.IGNORED:
            self._note(f"{given} is ignored: {row.remedy}")
        elif row.treatment is Treatment.REFUSED:
            if not row.asks_for_nothing(words):
                self._read.mistakes.append(f"{given}: {row.remedy}")
        elif row.conversion in {"same", "api_key"}:
            self._leave(row, name, words)
        elif row.conversion == "speculative_config":
            self._read_document(given, words[0])
        else:
            self._convert(row, name, given, words)

    def _note(self, text: str) -> None:
        if text not in self._seen:
            self._seen.add(text)
            self._read.notes.append(text)

    def _leave(self, row: PeerFlag, name: str, words: list[str]) -> None:
        """Leave a flag to the engine's parser, under its own name."""
        other, other_words = self._left.setdefault(row.flag, (name, words))
        if other != name and other_words != words:
            self._read.mistakes.append(conflict(name, words[0], other, other_words[0]))
        if row.is_switch:
            self._read.words.append(row.flag)
        elif len(words) == 1:
            self._read.words.append(f"{row.flag}={words[0]}")
        else:
            self._read.words += [row.flag, *words]

    def _convert(self, row: PeerFlag, name: str, given: str, words: list[str]) -> None:
        assert row.field is not None
        assert row.conversion is not None
        try:
            self._read.set(name, CONVERSIONS[row.conversion](row.field, words))
        except ValueError as error:
            self._read.mistakes.append(f"{given}: {error}")
            return
        if row.note is not None:
            self._note(f"{given}: {row.note}")

    def _read_document(self, given: str, text: str) -> None:
        try:
            self._config |= read_document(text)
        except ValueError as error:
            self._read.mistakes.append(f"{given}: {error}")

    def _read_config(self) -> None:
        if not self._config:
            return
        read = read_config(self._config)
        self._read.set("--speculative-config", read.settings)
        self._read.mistakes += read.mistakes
        for note in read.notes:
            self._note(note)


def _given(row: PeerFlag, name: str, words: list[str]) -> str:
    """Show a flag as it was given, without the value of a secret and what may be one.

    URLs and JSON objects may contain keys, and are not shown either.
    """
    is_shown = not row.is_secret and not row.is_switch
    shown = [word for word in words if is_shown and not re.search(r"^\s*[{]|://", word)]
    return " ".join([name, *map(without_key, shown)])


def unite(
    options: dict[str, Any], read: PeerArguments, flag_of: Mapping[str, str]
) -> Iterator[str]:
    """Add what peers' flags set to the engine's options by field, and yield what disagrees."""
    stored = read.settings.pop(STORED_QUANTIZATION, None)
    for place, setting in read.settings.items():
        if options.setdefault(place, setting.value) != setting.value:
            yield conflict(setting.flag, setting.value, flag_of.get(place, place), options[place])
    if stored is not None:
        yield from _quantization_error(stored, options.get("model.path"))


def _quantization_error(stored: Setting, folder: str | None) -> Iterator[str]:
    """Yield an error unless the weights of a checkpoint are stored in the format of the flag."""
    path = Path(folder or "", "config.json")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        found = stored_method(str(config["quantization_config"]["quant_method"]))
    except (OSError, ValueError, LookupError, TypeError):
        has_file = path.with_name("hf_quant_config.json").is_file()
        found = MODELOPT if has_file else "no such format"
    if found != stored.value:
        yield (
            f"{stored.flag} {without_key(str(stored.value))}: {path} names {found}, and quantizing "
            "wider weights would change answers: remove the flag, or use --quantization int8 or "
            "int4"
        )
