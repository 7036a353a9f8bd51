"""Trials: a configuration or table is compared with the one in force before it replaces it.

`machine.advance` is pure: record, observation, snapshot and time → next record and desired state.
The snapshot contains what was measured; the record is all state. It is stored in statuses of
SpecDecodeTrial and SpecDecodeDeployment and in ControllerRevisions (see `stored`), so that an
operator process may end at any point.
"""

from specdecode_operator.trial.record.record import Record
from specdecode_operator.trial.steps.machine import Step, advance, ended
from specdecode_operator.trial.steps.start import Proposal
from specdecode_operator.trial.strategies.context import EngineSnapshot
from specdecode_operator.trial.strategies.looks import Look, next_look

__all__ = [
    "EngineSnapshot",
    "Look",
    "Proposal",
    "Record",
    "Step",
    "advance",
    "ended",
    "next_look",
]
