"""The metrics of a fleet of engines, read pod by pod and added up exactly once.

`exposition` parses the text of a response, `reading` checks and sorts it, `ledger` adds readings up
over restarts and missing pods. Nothing here does I/O.
"""

from specdecode_operator.fleet.exposition import BadScrape
from specdecode_operator.fleet.ledger import Ledger
from specdecode_operator.fleet.reading import (
    BucketTotals,
    PositionTotals,
    Reading,
    Scraped,
)

__all__ = [
    "BadScrape",
    "BucketTotals",
    "Ledger",
    "PositionTotals",
    "Reading",
    "Scraped",
]
