"""The speculation table: its entries, its defaults, and the reader of every form it is written in.

Pure: a document goes in, entries and sentences come out. Who reads files is the engine.
"""

from specdecode_api.table.bands import accepted_to_fall, accepted_to_rise, ceiling, table_warnings
from specdecode_api.table.defaults import default_table
from specdecode_api.table.entry import (
    BadTable,
    BatchSizeKey,
    SpeculationTable,
    TableEntry,
    candidates,
    launch_fault,
)
from specdecode_api.table.reader import read_table

__all__ = [
    "BadTable",
    "BatchSizeKey",
    "SpeculationTable",
    "TableEntry",
    "accepted_to_fall",
    "accepted_to_rise",
    "candidates",
    "ceiling",
    "default_table",
    "launch_fault",
    "read_table",
    "table_warnings",
]
