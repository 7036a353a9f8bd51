"""Identity of an engine: hashes of its configuration, and the conditions of its measurements."""

import hashlib
import json
from collections.abc import Mapping
from typing import Final

from specdecode_api.metrics.form import gauge
from specdecode_api.speculation import Policy
from specdecode_api.table import TableEntry

HASHES: Final = ("config_hash", "table_hash")
FACTS: Final = (
    "version", "model", "draft", "algorithm", "policy", "topk", "page_size", "device", "dtype",
)  # fmt: skip
"""Facts that a measured acceptance or cost depends on, in addition to the traffic."""

INFO = gauge("info", "Always 1; the labels describe what the engine runs.", *HASHES, *FACTS)
PROCESS_START = gauge(
    "process_start_time_seconds", "Start time of the process, in seconds since 1970."
)

IDENTITY = (INFO, PROCESS_START)

TABLE_HASH_DIGITS = 10


def table_hash(policy: Policy, entries: Mapping[str, TableEntry]) -> str:
    """Return ten hexadecimal digits for a policy and its entries.

    The order of keys and candidates does not matter, nor whether a default is explicit, so that a
    field that a later release adds changes no hash. Without entries (policy static, or no
    drafting) the hash covers the policy alone; config hashes then distinguish draft steps.
    """
    written = {
        bound: entry.model_dump(mode="json", exclude_defaults=True)
        | {"candidate_steps": sorted(entry.candidate_steps)}
        for bound, entry in entries.items()
    }
    document = {"policy": policy.value, "entries": written}
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:TABLE_HASH_DIGITS]
