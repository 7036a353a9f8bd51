"""The result of acting on a plan: objects written and removed, and the first block."""

from dataclasses import dataclass
from enum import StrEnum

from specdecode_operator.kinds import ChildId, Manifest


class BlockReason(StrEnum):
    """Why acting on a plan stopped; also the reason in the condition."""

    NAME_CONFLICT = "NameConflict"
    WAITING_FOR_GARBAGE_COLLECTION = "WaitingForGarbageCollection"
    APPLY_FAILED = "ApplyFailed"
    IMAGE_VOLUMES_OFF = "ImageVolumesOff"
    TEMPLATE_REJECTED = "TemplateRejected"


@dataclass(frozen=True, slots=True)
class Blocked:
    """The reason for which acting stopped, and the message of the condition."""

    reason: BlockReason
    message: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was written and removed, and what blocked the rest."""

    written: tuple[Manifest, ...] = ()
    removed: tuple[ChildId, ...] = ()
    blocked: Blocked | None = None
    is_state_stored: bool = True
    """Whether SpecDecodeTrials and revisions were written; otherwise the status must not change."""
    trial_error: str = ""
    """Why an object of a trial was not written; everything else was."""
