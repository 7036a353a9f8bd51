"""Reads the speculation table from its file; the only place that does."""

import json
from collections import Counter
from pathlib import Path

from specdecode_api.boot import SpeculationBoot
from specdecode_api.speculation import Policy
from specdecode_api.table import BadTable, SpeculationTable, read_table, table_warnings


def load_table(speculation: SpeculationBoot) -> SpeculationTable:
    """Return the table that an engine is to choose in: of the file, of the boot file, or a default.

    Raises:
        BadTable: with every mistake in the file, its path before each.
    """
    if speculation.table_path is None:
        entries = speculation.entries
        return SpeculationTable(entries, table_warnings(entries, speculation.policy))
    return read_table_file(speculation.table_path, speculation.policy, speculation.num_steps)


def read_table_file(path: str, policy: Policy, num_steps: int | None = None) -> SpeculationTable:
    """Read a table in any form from a JSON file.

    Raises:
        BadTable: with every mistake, the path before each.
    """
    try:
        return read_table(_document(path), policy, num_steps)
    except BadTable as error:
        raise BadTable(tuple(f"{path}: {said}" for said in error.mistakes)) from None


def _document(path: str) -> object:
    try:
        # With a mark of byte order, as editors on Windows write it, or without.
        text = Path(path).read_text(encoding="utf-8-sig")
        return json.loads(text, object_pairs_hook=_each_key_once)
    except OSError as error:
        said = f"cannot be read: {error.strerror}; correct speculation.table_path"
        raise BadTable((said,)) from None
    except (ValueError, RecursionError) as error:
        raise BadTable((f"is no JSON that can be read: {error}; correct the file",)) from None


def _each_key_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    counts = Counter(key for key, _ in pairs)
    twice = [key for key, count in counts.items() if count > 1]
    if twice:
        raise ValueError(f"key {twice[0]!r} stands twice in one object")
    return dict(pairs)
