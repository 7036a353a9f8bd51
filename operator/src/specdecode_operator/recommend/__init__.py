"""Which table a fleet would decode fastest with, from what it has measured. Pure.

`pool` puts the engines' figures together, `survival` and `cost` say what a depth would bring and
take, `gain` what changing over would be worth, `table` writes the entries, `advice` decides.
"""

from specdecode_operator.recommend.advice import BandAdvice, NotYet, Recommendation, recommend
from specdecode_operator.recommend.pool import Pool, ValidityKey, pool_of
from specdecode_operator.recommend.table import Bounds, Current

__all__ = [
    "BandAdvice",
    "Bounds",
    "Current",
    "NotYet",
    "Pool",
    "Recommendation",
    "ValidityKey",
    "pool_of",
    "recommend",
]
