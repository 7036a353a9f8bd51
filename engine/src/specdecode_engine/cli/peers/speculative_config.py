"""vLLM's --speculative-config: a JSON object, each key of which sets a field or is refused."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from specdecode_api.peer_flags import PeerFlag, Treatment, read_peer_flags
from specdecode_api.peer_values import CONVERSIONS, as_words
from specdecode_engine.json_keys import repeated_key

FLAG = "--speculative-config"
EXAMPLE = '{"method": "eagle3", "model": "FOLDER", "num_speculative_tokens": 3}'
_KEYS_OF_METHODS = {
    "prompt_lookup_": ("ngram", "ngram_gpu"),
    "suffix_decoding_": ("suffix",),
}


@dataclass(slots=True)
class ReadConfig:
    """What the keys set, what is wrong with them, and what is ignored."""

    settings: dict[str, object] = field(default_factory=dict)
    mistakes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_document(text: str) -> dict[str, Any]:
    """Parse the value of the flag.

    Raises:
        ValueError: with the remedy.
    """
    try:
        place, document = repeated_key(text), json.loads(text)
    except (ValueError, RecursionError):
        place, document = "", None
    if place:
        raise ValueError(f"it contains {place} twice: remove one of them")
    if not isinstance(document, dict):
        raise ValueError(f"write a JSON object, such as {EXAMPLE}")
    return document


def read_config(document: Mapping[str, Any]) -> ReadConfig:
    """Check every key; null is as no key."""
    rows, read = read_peer_flags().speculative_config, ReadConfig()
    given = {key: value for key, value in document.items() if value is not None}
    for key, value in given.items():
        row = rows.get(key)
        if row is None:
            read.mistakes.append(f"{FLAG} has no key {key}: remove it, or correct its name")
        else:
            _read_key(row, value, read)
    read.mistakes += _errors_of_method(given)
    return read


def _read_key(row: PeerFlag, value: Any, read: ReadConfig) -> None:
    name, words = f"{FLAG} {row.flag} {json.dumps(value)}", as_words(value)
    if row.treatment is Treatment.IGNORED:
        read.notes.append(f"{name} is ignored: {row.remedy}")
    elif row.treatment is Treatment.REFUSED:
        read.mistakes += (
            [] if words in [[each] for each in row.accepts] else [f"{name}: {row.remedy}"]
        )
    elif len(words) != 1 or isinstance(value, list | dict):
        read.mistakes.append(f"{name}: write one value")
    else:
        assert row.field is not None
        assert row.conversion is not None
        try:
            read.settings |= CONVERSIONS[row.conversion](row.field, words)
        except ValueError as error:
            read.mistakes.append(f"{name}: {error}")


def _errors_of_method(given: Mapping[str, Any]) -> Iterator[str]:
    method = given.get("method")
    if method is None:
        yield f"{FLAG} has no method: add it, as in {EXAMPLE}"
        return
    for prefix, methods in _KEYS_OF_METHODS.items():
        for key in given:
            if key.startswith(prefix) and method not in methods:
                yield f"{FLAG} {key} is for the method {methods[0]}, not {method}: remove it"
