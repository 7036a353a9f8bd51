"""Identity of an engine: hashes of its configuration, and the conditions of its measurements."""

from typing import Final

from specdecode_api.metrics.form import gauge

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
