"""Reports of a container: its termination message, and the progress of its downloads.

Written by the engine's image, read by the operator. The two may be of different releases, so
unknown keys are ignored and an unknown reason is passed on unchanged.
"""

from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from specdecode_api.names import MAX_CONFIG_HASH_LENGTH

MAX_BYTES: Final = 4096
"""Kubernetes keeps no more of a termination message."""

_MAX_MESSAGE: Final = 2000


class ModelRole(StrEnum):
    """ModelRole of a model."""

    TARGET = "target"
    DRAFT = "draft"


class ModelState(StrEnum):
    """State of a model download."""

    PENDING = "Pending"
    WAITING = "Waiting"  # for another pod, which downloads the same model into the same PVC
    DOWNLOADING = "Downloading"
    READY = "Ready"
    FAILED = "Failed"


class TerminationReason(StrEnum):
    """Why a container terminated; also the reason in the conditions."""

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
    DRIVER_TOO_OLD = "DriverTooOld"
    BOOT_FILE_INVALID = "BootFileInvalid"
    API_KEYS_MISSING = "ApiKeysMissing"
    DEVICE_FAILED = "DeviceFailed"
    STEP_TIMED_OUT = "StepTimedOut"
    ENGINE_FAILED = "EngineFailed"
    FETCHED = "Fetched"  # the only reason without an error


class Degraded(StrEnum):
    """How a serving engine may fall short of its configuration."""

    API_KEYS_MISSING = "ApiKeysMissing"
    DRAFT_UNFIT = "DraftUnfit"
    TABLE_REFUSED = "SpeculationTableRefused"
    NEEDS_RESTART = "NeedsRestart"
    CUDA_GRAPHS_MISSED = "CudaGraphsMissed"
    CPU_KERNELS_MISSING = "CpuKernelsMissing"


MODEL_REASONS: Final = frozenset(
    {
        TerminationReason.UNAUTHORIZED,
        TerminationReason.MODEL_NOT_FOUND,
        TerminationReason.REVISION_NOT_FOUND,
        TerminationReason.HUB_UNREACHABLE,
        TerminationReason.CHECKSUM_MISMATCH,
        TerminationReason.OUT_OF_SPACE,
        TerminationReason.CACHE_NOT_WRITABLE,
        TerminationReason.CHECKPOINT_INVALID,
        TerminationReason.DRAFT_MISMATCH,
    }
)
"""Reasons that concern the models, not the engine."""


class Report(BaseModel):
    """A part of a report: immutable, unknown keys ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class ModelReport(Report):
    """State of one model's download."""

    role: ModelRole
    uri: Annotated[str, StringConstraints(max_length=1024)]
    state: ModelState = ModelState.PENDING
    revision: Annotated[str, StringConstraints(pattern="^[0-9a-f]{40}$")] | None = None
    bytes_done: int = Field(default=0, ge=0, le=2**53)
    bytes_total: int | None = Field(default=None, ge=0, le=2**53)


class StartProgress(Report):
    """What an engine does before it serves: `done` of `total`, if that is counted."""

    stage: Annotated[str, StringConstraints(max_length=256)]
    done: int = Field(default=0, ge=0, le=2**53)
    total: int | None = Field(default=None, ge=0, le=2**53)
    unit: Annotated[str, StringConstraints(max_length=16)] = ""
    """B for bytes."""


class Progress(Report):
    """Response of a container that downloads models, or of an engine that starts."""

    models: tuple[ModelReport, ...] = Field(default=(), max_length=8)
    start: StartProgress | None = None
    """None once the engine serves and has captured all CUDA graphs."""


class Degradation(Report):
    """One way in which an engine falls short of its configuration."""

    reason: Annotated[str, StringConstraints(pattern="^[A-Z][A-Za-z]{0,63}$")]
    message: Annotated[str, StringConstraints(max_length=_MAX_MESSAGE)] = ""


class Degradations(Report):
    """Response of an engine: all its degradations."""

    degraded: tuple[Degradation, ...] = Field(default=(), max_length=16)


class DraftInUse(Report):
    """Response of an engine: the draft in use, and how exchanging it went."""

    path: Annotated[str, StringConstraints(max_length=4096)] | None = None
    config_hash: Annotated[str, StringConstraints(max_length=MAX_CONFIG_HASH_LENGTH)] = ""
    """Of the configuration that the engine runs, this draft included."""
    changing_to: Annotated[str, StringConstraints(max_length=4096)] | None = None
    refused_path: Annotated[str, StringConstraints(max_length=4096)] | None = None
    refused_needs_restart: bool = False
    """Whether an engine that starts with the refused draft may use it."""
    latest_refusal: str | None = None


class TerminationMessage(Progress):
    """Why a container terminated: a reason for programs, a message for people."""

    reason: Annotated[str, StringConstraints(pattern="^[A-Z][A-Za-z]{0,63}$")]
    message: str = ""

    def encode(self) -> bytes:
        """Encode as JSON of at most `MAX_BYTES`; the middle of a long message is cut."""
        room = _MAX_MESSAGE
        while True:
            words = self.model_copy(update={"message": _shortened(self.message, room)})
            text = words.model_dump_json(exclude_none=True).encode()
            if len(text) <= MAX_BYTES or room == 0:
                return text
            room //= 2

    @classmethod
    def decode(cls, text: str) -> Self | None:
        """Decode a termination message; None if `text` is not one."""
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            return None


def _shortened(text: str, room: int) -> str:
    if len(text) <= room:
        return text
    half = room // 2
    return f"{text[:half]} … {text[len(text) - half :]}"
