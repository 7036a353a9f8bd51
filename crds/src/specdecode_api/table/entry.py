"""What a table consists of: the depths of a range of batch sizes, and how its slot adapts."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Protocol

from pydantic import AfterValidator, Field, StringConstraints

from specdecode_api.document import FileRecord
from specdecode_api.speculation import BATCH_SIZE_PATTERN, MAX_CANDIDATES, MAX_STEPS, Policy

MAX_CEILING_COEFF: Final = 16

BatchSizeKey = Annotated[str, StringConstraints(pattern=f"^{BATCH_SIZE_PATTERN}$")]

# Strict: neither "3" nor true is a number, here as in the resource.
_Int = Annotated[int, Field(strict=True)]
_Float = Annotated[float, Field(strict=True)]


def _each_once(steps: tuple[int, ...]) -> tuple[int, ...]:
    repeated = sorted(depth for depth, count in Counter(steps).items() if count > 1)
    if repeated:
        raise ValueError(f"every depth may stand here once: remove the repeated {repeated}")
    return steps


class TableEntry(FileRecord):
    """The depths that a range of batch sizes may use, and how its slot adapts."""

    candidate_steps: Annotated[
        tuple[Annotated[_Int, Field(ge=0, le=MAX_STEPS)], ...], AfterValidator(_each_once)
    ] = Field(
        min_length=1,
        max_length=MAX_CANDIDATES,
        description="Depths to choose from; 0 is plain decoding.",
    )
    up_hysteresis: _Float = Field(
        default=0.0,
        ge=-16,
        le=16,
        description="Added to the accept length above which the depth rises (policy ema).",
    )
    down_hysteresis: _Float = Field(
        default=-0.25,
        ge=-16,
        le=16,
        description="Added to the accept length below which the depth falls (policy ema).",
    )
    ceiling_coeff: _Float = Field(
        default=0.0,
        ge=0,
        le=MAX_CEILING_COEFF,
        description="Caps the depth at this multiple of the accept length (policy ema); "
        "0 is no cap.",
    )
    ema_alpha: _Float = Field(
        default=0.2,
        gt=0,
        le=1,
        description="Weight of the newest round in the moving average (policy ema).",
    )
    update_interval: _Int = Field(
        default=5, ge=1, le=100_000, description="Rounds between two decisions (policy ema)."
    )
    warmup_batches: _Int = Field(
        default=10, ge=0, le=100_000, description="Rounds before the first decision (policy ema)."
    )


@dataclass(frozen=True, slots=True)
class SpeculationTable:
    """A table that was read, and what is doubtful about it.

    `entries` goes from the lower bound of a range, in digits, to its entry, bounds ascending; it
    is empty where there is no table. `policy` is the one that the document itself asks for.
    """

    entries: Mapping[str, TableEntry]
    warnings: tuple[str, ...] = ()
    policy: Policy | None = None


class BadTable(ValueError):
    """A table has mistakes; the message lists all of them, one a line."""

    def __init__(self, mistakes: tuple[str, ...]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = mistakes


class HasCandidates(Protocol):
    """An entry in either spelling."""

    @property
    def candidate_steps(self) -> Collection[int]:
        """Depths to choose from."""


def candidates(entries: Mapping[str, HasCandidates]) -> tuple[int, ...]:
    """List every depth of the entries once, ascending."""
    return tuple(sorted({steps for entry in entries.values() for steps in entry.candidate_steps}))


def launch_fault(num_steps: int, allowed: tuple[int, ...]) -> str | None:
    """Say what is wrong with starting at `num_steps` where only some depths are `allowed`."""
    if not allowed or num_steps in allowed:
        return None
    return f"num_steps {num_steps} is in no entry of the table: use one of {list(allowed)}"
