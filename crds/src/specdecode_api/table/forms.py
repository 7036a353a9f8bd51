"""Normalizes the formats of a table to entries by batch size, and defaults for all of them.

    {"1": {"candidate_steps": [1, 3]}, "ema_alpha": 0.3}                  SGLang's file
    {"policy": "Ema", "batchSizes": [{"from": 1, "candidateSteps": [1, 3]}]}    `adaptive` of the
                                                                          custom resource

Both formats accept names in both spellings. Errors are appended to the given list.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pydantic.alias_generators import to_camel

from specdecode_api.speculation import BATCH_SIZE_PATTERN, MAX_BATCH_SIZE
from specdecode_api.table.entry import TableEntry
from specdecode_api.validation_errors import Place, dotted, no_such_field, seen

FIELDS: Final = tuple(TableEntry.model_fields)
CHOOSERS: Final = ("strategy", "policy")
_NESTED: Final = ("batchSizes", "batch_sizes")
_OBJECTIVE: Final = ("objective", "maxInterTokenMs", "max_inter_token_ms")
_FROM: Final = "from"
_BY_SPELLING: Final = {name: name for name in FIELDS} | {to_camel(name): name for name in FIELDS}


@dataclass(frozen=True, slots=True)
class Form:
    """The parts of a document; names and values are unchanged."""

    at: Place  # path of the entries
    places: Mapping[str, Place]  # path of each entry
    is_camel: bool
    entries: Mapping[str, object]
    defaults: Mapping[str, object]
    choosers: Mapping[str, object]  # fields that name a policy
    is_broken: bool = False  # entries have errors that are reported already

    def spelt(self, field: str) -> str:
        """Return the name of a field in the spelling of the document."""
        return to_camel(field) if self.is_camel else field

    def by_field(
        self, written: Mapping[str, object], place: Place, mistakes: list[str]
    ) -> dict[str, object]:
        values: dict[str, object] = {}
        for key, value in written.items():
            field = _BY_SPELLING.get(key)
            if field is None:
                error = no_such_field(key, [self.spelt(name) for name in FIELDS])
                mistakes.append(f"{dotted((*place, key))}: {error}")
            elif field in values:
                mistakes.append(f"{dotted((*place, key))}: is given in both spellings: keep one")
            else:
                values[field] = value
        return values


def take_apart(document: Mapping[str, object], mistakes: list[str]) -> Form:
    """Split a document into entries, defaults and fields that name a policy."""
    nested = next((name for name in _NESTED if name in document), None)
    others = {key: value for key, value in document.items() if key != nested}
    numbers = {key: value for key, value in others.items() if _is_number(key)}
    listed = {} if nested is None else _listed(nested, document[nested], mistakes)
    entries = numbers if nested is None else {key: entry for key, (_, entry) in listed.items()}
    words = {key: others[key] for key in others if key not in numbers}
    defaults = {key: value for key, value in words.items() if key in _BY_SPELLING}
    choosers = {key: value for key, value in words.items() if key in CHOOSERS}
    at = () if nested is None else (nested,)
    is_camel = nested == "batchSizes" or _is_camel(document, entries)
    places: dict[str, Place] = {key: (key,) for key in entries}
    if nested is not None:
        places = {key: (nested, index) for key, (index, _) in listed.items()}
    is_broken = nested is not None and document[nested] != [] and not entries
    form = Form(at, places, is_camel, entries, defaults, choosers, is_broken)
    if nested is not None:
        for key in (*numbers, *(word for word in words if word in _NESTED)):
            mistakes.append(f"{dotted((key,))}: is next to {nested}: move it into {nested}")
    known = [*(form.spelt(name) for name in FIELDS), *CHOOSERS, _NESTED[0]]
    for key in words:
        if key in _OBJECTIVE:
            # The defaults of `adaptive` change nothing: the objective of the boot file holds.
            if words[key] not in (None, "Throughput"):
                place = "speculation.objective and speculation.max_inter_token_ms of the boot file"
                mistakes.append(f"{dotted((key,))}: does not belong to a table: use {place}")
        elif key not in {*defaults, *choosers, *_NESTED}:
            mistakes.append(f"{dotted((key,))}: {no_such_field(key, known)}")
    return form


def bad_bound(key: str) -> str | None:
    """Return the error of a key that should be a batch size, or None."""
    if re.fullmatch(BATCH_SIZE_PATTERN, key):
        return None
    plain = key.strip().lstrip("+0")
    remedy = f"write {plain}" if re.fullmatch(BATCH_SIZE_PATTERN, plain) else "rename the key"
    return (
        "a batch size is a whole number from 1 to 999999 in digits, without leading zeros: "
        f"{remedy}{seen(key)}"
    )


def _listed(name: str, table: object, mistakes: list[str]) -> dict[str, tuple[int, object]]:
    """Return the entries of a list by their `from` in digits, each with its index.

    An entry whose `from` is rejected has its place as the key, so that its fields are checked too.
    """
    if not isinstance(table, list):
        example = '[{"from": 1, "candidateSteps": [0, 1, 3]}]'
        mistakes.append(f"{name}: must be a list of entries such as {example}{seen(table)}")
        return {}
    found: dict[str, tuple[int, object]] = {}
    for index, entry in enumerate(table):
        place = (name, index)
        if not isinstance(entry, Mapping):
            example = '{"from": 1, "candidateSteps": [0, 1, 3]}'
            mistakes.append(f"{dotted(place)}: an entry is an object: write {example}{seen(entry)}")
            continue
        key = _key_of(entry, place, mistakes)
        if key in found:
            error = f"occurs twice: keep one of the entries; got {key}"
            mistakes.append(f"{dotted((*place, _FROM))}: {error}")
            key = None
        own = {name: value for name, value in entry.items() if name != _FROM}
        found[dotted(place) if key is None else key] = (index, own)
    return found


def _key_of(entry: Mapping[str, object], place: Place, mistakes: list[str]) -> str | None:
    bound = entry.get(_FROM)
    if _FROM not in entry:
        mistakes.append(f"{dotted((*place, _FROM))}: is required: add it")
    elif type(bound) is not int or not 1 <= bound <= MAX_BATCH_SIZE:
        error = f"must be a whole number from 1 to {MAX_BATCH_SIZE}"
        mistakes.append(f"{dotted((*place, _FROM))}: {error}{seen(bound)}")
    else:
        return str(bound)
    return None


def _is_number(key: str) -> bool:
    """Return whether a key looks like a batch size; `bad_bound` checks it."""
    return key.strip().lstrip("+-")[:1].isdigit()


def _is_camel(document: Mapping[str, object], entries: Mapping[str, object]) -> bool:
    objects = [document, *(entry for entry in entries.values() if isinstance(entry, Mapping))]
    return any(key in _BY_SPELLING and key not in FIELDS for each in objects for key in each)
