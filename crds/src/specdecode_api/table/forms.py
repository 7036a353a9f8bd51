"""Normalizes the formats of a table to entries by batch size, and defaults for all of them.

    {"1": {"candidate_steps": [1, 3]}, "ema_alpha": 0.3}                  SGLang's file
    {"policy": "ema", "batchSizes": {"1": {"candidateSteps": [1, 3]}}}    the resource's `adaptive`

Both formats accept names in both spellings. Errors are appended to the given list.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pydantic.alias_generators import to_camel

from specdecode_api.speculation import BATCH_SIZE_PATTERN
from specdecode_api.table.entry import TableEntry
from specdecode_api.validation_errors import Place, dotted, no_such_field, seen

FIELDS: Final = tuple(TableEntry.model_fields)
CHOOSERS: Final = ("strategy", "policy")
_NESTED: Final = ("batchSizes", "batch_sizes")
_BY_SPELLING: Final = {name: name for name in FIELDS} | {to_camel(name): name for name in FIELDS}


@dataclass(frozen=True, slots=True)
class Form:
    """The parts of a document; names and values are unchanged."""

    at: Place  # path of the entries
    is_camel: bool
    entries: Mapping[str, object]
    defaults: Mapping[str, object]
    choosers: Mapping[str, object]  # fields that name a policy

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
    entries = numbers if nested is None else _nested(nested, document[nested], mistakes)
    words = {key: others[key] for key in others if key not in numbers}
    defaults = {key: value for key, value in words.items() if key in _BY_SPELLING}
    choosers = {key: value for key, value in words.items() if key in CHOOSERS}
    at = () if nested is None else (nested,)
    is_camel = nested == "batchSizes" or _is_camel(document, entries)
    form = Form(at, is_camel, entries, defaults, choosers)
    if nested is not None:
        for key in (*numbers, *(word for word in words if word in _NESTED)):
            mistakes.append(f"{dotted((key,))}: is next to {nested}: move it into {nested}")
    known = [*(form.spelt(name) for name in FIELDS), *CHOOSERS, _NESTED[0]]
    for key in words:
        if key not in {*defaults, *choosers, *_NESTED}:
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


def _nested(name: str, table: object, mistakes: list[str]) -> dict[str, object]:
    if isinstance(table, Mapping):
        return {str(key): entry for key, entry in table.items()}
    mistakes.append(f"{name}: must be an object from batch sizes to entries{seen(table)}")
    return {}


def _is_number(key: str) -> bool:
    """Return whether a key looks like a batch size; `bad_bound` checks it."""
    return key.strip().lstrip("+-")[:1].isdigit()


def _is_camel(document: Mapping[str, object], entries: Mapping[str, object]) -> bool:
    objects = [document, *(entry for entry in entries.values() if isinstance(entry, Mapping))]
    return any(key in _BY_SPELLING and key not in FIELDS for each in objects for key in each)
