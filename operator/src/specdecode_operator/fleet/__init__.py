"""What a fleet of engines says of itself, read pod by pod and added up exactly once.

`scrape` and `prometheus` fetch, `exposition` and `reading` understand, `ledger` adds up and
`checkpoint` writes it down. Only the two that fetch touch the network.
"""

from specdecode_operator.fleet.checkpoint import BadCheckpoint, dump, load
from specdecode_operator.fleet.ledger import Ledger
from specdecode_operator.fleet.reading import (
    BadScrape,
    DepthTotals,
    PositionTotals,
    Reading,
    Scraped,
)

__all__ = [
    "BadCheckpoint",
    "BadScrape",
    "DepthTotals",
    "Ledger",
    "PositionTotals",
    "Reading",
    "Scraped",
    "dump",
    "load",
]
