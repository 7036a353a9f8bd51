"""Recommends the table with which a fleet would decode fastest, from its measurements. Pure.

`pool` adds up the measurements of engines, `survival` and `cost` estimate tokens and seconds of a
decode step by its draft steps, `gain` compares with the present table, `table` builds the entries,
`advice` decides.
"""

from specdecode_operator.recommend.advice import BucketAdvice, NotYet, Recommendation, recommend
from specdecode_operator.recommend.pool import Pool, ValidityKey, pool_of
from specdecode_operator.recommend.table import Bounds, Current

__all__ = [
    "Bounds",
    "BucketAdvice",
    "Current",
    "NotYet",
    "Pool",
    "Recommendation",
    "ValidityKey",
    "pool_of",
    "recommend",
]
