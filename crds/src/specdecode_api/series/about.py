"""What an engine is: hashes that name what it runs, and what its measurements are valid for."""

from typing import Final

from specdecode_api.series.form import gauge

HASHES: Final = ("config_hash", "table_hash")
FACTS: Final = (
    "version", "model", "draft", "algorithm", "policy", "topk", "page_size", "device", "dtype",
)  # fmt: skip
"""Facts that a measured acceptance or cost depends on, beside the traffic."""

INFO = gauge("info", "Always 1; its labels say what the engine runs.", *HASHES, *FACTS)
PROCESS_START = gauge(
    "process_start_time_seconds", "When the process started, in seconds since 1970."
)

IDENTITY = (INFO, PROCESS_START)
