"""Trials: whether a new configuration or table comes in force is found out beside the old one.

`machine.advance` is pure: what is recorded, what is observed and the time go in; the next record
and what should run come out. `sight` is what was measured, fetched elsewhere; `record` is all that
is kept, in one ConfigMap of the resource, so that an operator may end at any point. The status is
written from the record and never read.
"""

from specdecode_operator.trial.beginning import Proposal
from specdecode_operator.trial.looks import Look, next_look
from specdecode_operator.trial.loss import hash_of_template
from specdecode_operator.trial.machine import Step, advance
from specdecode_operator.trial.record import Record
from specdecode_operator.trial.sight import Sight

__all__ = [
    "Look",
    "Proposal",
    "Record",
    "Sight",
    "Step",
    "advance",
    "hash_of_template",
    "next_look",
]
