"""What a table is called: the same name wherever and however it was written."""

import hashlib
import json
from collections.abc import Mapping

from specdecode_api.speculation import Policy
from specdecode_api.table import TableEntry

TABLE_HASH_DIGITS = 10


def table_hash(policy: Policy, entries: Mapping[str, TableEntry]) -> str:
    """Ten hexadecimal digits that stand for a policy and the entries that it chooses among.

    Order of keys and of depths does not count, nor whether a default was written out: a field that
    a later release adds changes no name. Without entries (policy static, or no drafting) it stands
    for the policy alone; the configuration's hash then tells depths apart.
    """
    written = {
        bound: entry.model_dump(mode="json", exclude_defaults=True)
        | {"candidate_steps": sorted(entry.candidate_steps)}
        for bound, entry in entries.items()
    }
    document = {"policy": policy.value, "entries": written}
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:TABLE_HASH_DIGITS]
