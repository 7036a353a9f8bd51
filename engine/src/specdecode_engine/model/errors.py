"""What can be wrong with a checkpoint.

CheckpointError
├── ConfigError      config.json has a value that cannot be used
├── TensorError      the tensor files are missing, damaged or do not fit config.json
└── DraftMismatch    the draft was made for another target
"""

from pathlib import Path
from typing import ClassVar

from specdecode_api.report import TerminationReason


class CheckpointError(Exception):
    """A checkpoint that cannot be loaded; the message has the file, the error and the remedy."""

    reason: ClassVar[TerminationReason] = TerminationReason.CHECKPOINT_INVALID


class ConfigError(CheckpointError):
    """One key of a config.json that is missing, malformed or not supported."""

    def __init__(self, file: Path, key: str, fault: str, remedy: str) -> None:
        super().__init__(f"{file}: {key} {fault}; {remedy}")
        self.file = file
        self.key = key


class TensorError(CheckpointError):
    """A tensor file, or tensors in it, that are missing, damaged or of the wrong shape."""

    def __init__(self, file: Path, fault: str, remedy: str) -> None:
        super().__init__(f"{file}: {fault}; {remedy}")
        self.file = file


class DraftMismatch(CheckpointError):
    """The draft's checkpoint does not belong to the target's; the message holds both numbers."""

    reason = TerminationReason.DRAFT_MISMATCH
