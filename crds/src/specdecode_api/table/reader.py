"""Reads a table from a document in any format, and reports all its errors at once.

The formats are in `forms`, the bounds in `entry`. SGLang's file may name a `strategy`: `ema` means
policy ema; `throughput_aware` means policy goodput, which SGLang does not have.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from pydantic import ValidationError

from specdecode_api.speculation import MAX_STEPS, MAX_TABLE_ENTRIES, Policy
from specdecode_api.table.entry import SpeculationTable, TableEntry, TableError, launch_error
from specdecode_api.table.forms import CHOOSERS, Form, bad_bound, take_apart
from specdecode_api.table.thresholds import table_warnings
from specdecode_api.validation_errors import Place, dotted, refusals, seen

_EXAMPLE: Final = '{"1": {"candidate_steps": [1, 3, 5]}, "8": {"candidate_steps": [0, 1]}}'
_POLICIES: Final = {
    **{policy.value: policy for policy in Policy},
    **{policy.value.capitalize(): policy for policy in Policy},
    "throughput_aware": Policy.GOODPUT,
}
_STEPS: Final = "candidate_steps"
_SOME_STEPS: Final = [0]
"""Placeholder for rejected candidates, so that no entry reports them as missing."""

Values = Mapping[str, object]


def read_table(document: object, policy: Policy, num_steps: int | None = None) -> SpeculationTable:
    """Read a table for `policy`, which starts at `num_steps` if given.

    Args:
        document: the parsed JSON file, in one of the formats of `forms`.

    Raises:
        TableError: with every error: its path, value and remedy.
    """
    if not isinstance(document, Mapping):
        raise TableError((f"document: must be an object such as {_EXAMPLE}{seen(document)}",))
    mistakes: list[str] = []
    form = take_apart({str(key): value for key, value in document.items()}, mistakes)
    asked = _asked_policy(form, mistakes)
    defaults = _checked_defaults(form, mistakes)
    mistakes += _number_of_entries(form)
    written: list[Values | None] = []
    entries: dict[str, TableEntry] = {}
    for key in form.entries:
        values = _values(form, key, defaults, mistakes)
        written.append(values)
        entries |= _entry(form, key, values, mistakes)
    if num_steps is not None and (error := launch_error(num_steps, _listed(written))):
        mistakes.append(error)
    if mistakes:
        raise TableError(tuple(mistakes))
    ascending = {key: entries[key] for key in sorted(entries, key=int)}
    warnings = [*_policy_warnings(form, asked, policy), *table_warnings(ascending, policy)]
    return SpeculationTable(ascending, tuple(warnings), asked)


def _asked_policy(form: Form, mistakes: list[str]) -> Policy | None:
    asked = None
    for key, value in form.choosers.items():
        named = _POLICIES.get(value) if isinstance(value, str) else None
        if named is None:
            mistakes.append(f"{key}: must be one of {', '.join(_POLICIES)}{seen(value)}")
        elif asked not in (None, named):
            mistakes.append(f"{key}: contradicts {CHOOSERS[0]}: keep one of the two{seen(value)}")
        asked = asked or named
    return asked


def _checked_defaults(form: Form, mistakes: list[str]) -> Values:
    """Return the valid defaults; errors are reported once, not for every entry."""
    defaults = form.by_field(form.defaults, (), mistakes)
    try:
        TableEntry.model_validate({_STEPS: _SOME_STEPS, **defaults})
    except ValidationError as error:
        found = refusals(error, TableEntry)
        mistakes += _sentences(form, (), found)
        bad = {str(place[0]) for place, _ in found}
        defaults = {name: value for name, value in defaults.items() if name not in bad}
        if _STEPS in bad:
            defaults[_STEPS] = _SOME_STEPS
    return defaults


def _number_of_entries(form: Form) -> Iterator[str]:
    if not form.entries and _STEPS in form.by_field(form.defaults, (), []):
        table = {**form.choosers, "1": form.defaults}
        yield (
            "document: draft steps are chosen by batch size, and no key is a batch size: "
            f"write {json.dumps(table, default=repr)}"
        )
    elif not form.entries and not form.is_broken:
        keys = [*form.defaults, *form.choosers]
        steps = f'"{form.spelt(_STEPS)}": [0, 1, 3]'
        yield (
            f'{dotted(form.at)}: has no entry: add one, such as {{"from": 1, {steps}}}'
            if form.at
            else f"{dotted(form.at)}: has no batch size as a key: add one, "
            f'such as "1": {{{steps}}}{seen(keys) if keys else ""}'
        )
    if len(form.entries) > MAX_TABLE_ENTRIES:
        yield (
            f"{dotted(form.at)}: takes at most {MAX_TABLE_ENTRIES} batch sizes: remove some; "
            f"got {len(form.entries)}"
        )


def _values(form: Form, key: str, defaults: Values, mistakes: list[str]) -> Values | None:
    """Return the values of an entry, defaults filled in; None if it is not an object."""
    place = dotted(form.places[key])
    is_key = len(form.places[key]) == 1  # `from` of a list has been checked
    if is_key and (error := bad_bound(key)):
        mistakes.append(f"{place}: {error}")
    written = form.entries[key]
    if isinstance(written, Mapping):
        own = {str(name): value for name, value in written.items()}
        return {**defaults, **form.by_field(own, form.places[key], mistakes)}
    steps = written if isinstance(written, list) and written else [0, 1, 3]
    example = json.dumps({form.spelt(_STEPS): steps}, default=repr)
    mistakes.append(f"{place}: an entry is an object: write {example}{seen(written)}")
    return None


def _entry(
    form: Form, key: str, values: Values | None, mistakes: list[str]
) -> dict[str, TableEntry]:
    """Return the entry by its key; empty if it is invalid."""
    if values is None:
        return {}
    try:
        return {key: TableEntry.model_validate(values)}
    except ValidationError as error:
        mistakes += _sentences(form, form.places[key], refusals(error, TableEntry))
        return {}


def _sentences(form: Form, at: Place, found: list[tuple[Place, str]]) -> Iterator[str]:
    for (field, *below), text in found:
        yield f"{dotted((*at, form.spelt(str(field)), *below))}: {text}"


def _listed(entries: Iterable[Values | None]) -> tuple[int, ...]:
    """List the candidates of all entries, also of invalid ones; none if an entry is unreadable."""
    lists = [values.get(_STEPS) if values else None for values in entries]
    readable = [steps for steps in lists if isinstance(steps, list)]
    if len(readable) < len(lists):
        return ()
    known = {steps for each in readable for steps in each if type(steps) is int}
    return tuple(sorted(known & set(range(MAX_STEPS + 1))))


def _policy_warnings(form: Form, asked: Policy | None, policy: Policy) -> Iterator[str]:
    if asked not in (None, policy):
        yield f"{next(iter(form.choosers))}: names policy {asked}, but policy {policy} is in use"
    elif "throughput_aware" in form.choosers.values():
        yield (
            "strategy: throughput_aware is read as policy goodput, which has the same goal and "
            "its own measurements"
        )
