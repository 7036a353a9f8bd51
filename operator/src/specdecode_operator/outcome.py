"""What came of a plan: children written and removed, and the first obstacle."""

from dataclasses import dataclass
from enum import StrEnum

from specdecode_operator.kinds import ChildId, Manifest


class Obstacle(StrEnum):
    """Why a plan stopped; also the reason in the condition."""

    NAME_CONFLICT = "NameConflict"
    WAITING_FOR_GARBAGE_COLLECTION = "WaitingForGarbageCollection"
    APPLY_FAILED = "ApplyFailed"
    IMAGE_VOLUMES_OFF = "ImageVolumesOff"


@dataclass(frozen=True, slots=True)
class Stopped:
    """The obstacle at which acting stopped, with a sentence for the user."""

    reason: Obstacle
    message: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the API server answered to a plan."""

    written: tuple[Manifest, ...] = ()
    removed: tuple[ChildId, ...] = ()
    stopped: Stopped | None = None
