"""What a container says about itself: its last words, and how far its downloads are.

Written by the engine's image, read by the operator. The two may be of different releases, so
unknown keys are ignored and an unknown reason is passed on as it is.
"""

from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

MAX_BYTES: Final = 4096
"""Kubernetes keeps no more of a termination message."""

_MAX_MESSAGE: Final = 2000


class Role(StrEnum):
    """What a model is there for."""

    TARGET = "target"
    DRAFT = "draft"


class ModelState(StrEnum):
    """How far a model is that is downloaded."""

    PENDING = "Pending"
    WAITING = "Waiting"  # for another pod, which downloads the same into the same claim
    DOWNLOADING = "Downloading"
    READY = "Ready"
    FAILED = "Failed"


class Reason(StrEnum):
    """Why a container ended; also the reason in the conditions."""

    UNAUTHORIZED = "Unauthorized"
    MODEL_NOT_FOUND = "ModelNotFound"
    REVISION_NOT_FOUND = "RevisionNotFound"
    HUB_UNREACHABLE = "HubUnreachable"
    CHECKSUM_MISMATCH = "ChecksumMismatch"
    OUT_OF_SPACE = "OutOfSpace"
    CACHE_NOT_WRITABLE = "CacheNotWritable"
    CHECKPOINT_INVALID = "CheckpointInvalid"
    DRAFT_MISMATCH = "DraftMismatch"
    NOT_ENOUGH_MEMORY = "NotEnoughMemory"
    CANNOT_SERVE = "CannotServe"
    BOOT_FILE_INVALID = "BootFileInvalid"
    API_KEYS_MISSING = "ApiKeysMissing"
    ENGINE_FAILED = "EngineFailed"
    FETCHED = "Fetched"  # the only one that is no fault


class Degraded(StrEnum):
    """What an engine that serves may do worse than it was told to."""

    API_KEYS_MISSING = "ApiKeysMissing"
    TABLE_REFUSED = "SpeculationTableRefused"
    NEEDS_RESTART = "NeedsRestart"
    CAPTURED_PASSES_MISSED = "CapturedPassesMissed"
    CPU_KERNELS_MISSING = "CpuKernelsMissing"


MODEL_REASONS: Final = frozenset(
    {
        Reason.UNAUTHORIZED,
        Reason.MODEL_NOT_FOUND,
        Reason.REVISION_NOT_FOUND,
        Reason.HUB_UNREACHABLE,
        Reason.CHECKSUM_MISMATCH,
        Reason.OUT_OF_SPACE,
        Reason.CACHE_NOT_WRITABLE,
        Reason.CHECKPOINT_INVALID,
        Reason.DRAFT_MISMATCH,
    }
)
"""Reasons that say of the models, not of the engine, that something is wrong."""


class Report(BaseModel):
    """A part of a report: immutable, unknown keys ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class ModelReport(Report):
    """One model that is downloaded."""

    role: Role
    uri: Annotated[str, StringConstraints(max_length=1024)]
    state: ModelState = ModelState.PENDING
    revision: Annotated[str, StringConstraints(pattern="^[0-9a-f]{40}$")] | None = None
    bytes_done: int = Field(default=0, ge=0, le=2**53)
    bytes_total: int | None = Field(default=None, ge=0, le=2**53)


class Progress(Report):
    """What a container that downloads answers while it does."""

    models: tuple[ModelReport, ...] = Field(default=(), max_length=8)


class Degradation(Report):
    """One thing that an engine does worse than it was told to."""

    reason: Annotated[str, StringConstraints(pattern="^[A-Z][A-Za-z]{0,63}$")]
    message: Annotated[str, StringConstraints(max_length=_MAX_MESSAGE)] = ""


class Degradations(Report):
    """What an engine answers when it is asked what is worse."""

    degraded: tuple[Degradation, ...] = Field(default=(), max_length=16)


class LastWords(Progress):
    """Why a container ended: a word for programs, a sentence for people."""

    reason: Annotated[str, StringConstraints(pattern="^[A-Z][A-Za-z]{0,63}$")]
    message: str = ""

    def encode(self) -> bytes:
        """Write as JSON that fits into a termination message; a long text loses its middle."""
        room = _MAX_MESSAGE
        while True:
            words = self.model_copy(update={"message": _shortened(self.message, room)})
            text = words.model_dump_json(exclude_none=True).encode()
            if len(text) <= MAX_BYTES or room == 0:
                return text
            room //= 2

    @classmethod
    def decode(cls, text: str) -> Self | None:
        """Read a termination message; None where it is anything else."""
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            return None


def _shortened(text: str, room: int) -> str:
    if len(text) <= room:
        return text
    half = room // 2
    return f"{text[:half]} … {text[len(text) - half :]}"
