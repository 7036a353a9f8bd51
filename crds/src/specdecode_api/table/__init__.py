"""The speculation table: its entries, its defaults, and the reader of its formats.

Pure: a document goes in, entries and messages come out. The engine reads the files.
"""

from specdecode_api.table.entry import (
    BatchSizeKey,
    SpeculationTable,
    TableEntry,
    TableError,
    candidates,
    default_table,
    launch_error,
    undrafted_error,
    verify_tokens_error,
)
from specdecode_api.table.reader import read_table
from specdecode_api.table.thresholds import (
    accepted_to_fall,
    accepted_to_rise,
    ceiling,
    resource_table_warnings,
    table_warnings,
)

__all__ = [
    "BatchSizeKey",
    "SpeculationTable",
    "TableEntry",
    "TableError",
    "accepted_to_fall",
    "accepted_to_rise",
    "candidates",
    "ceiling",
    "default_table",
    "launch_error",
    "read_table",
    "resource_table_warnings",
    "table_warnings",
    "undrafted_error",
    "verify_tokens_error",
]
