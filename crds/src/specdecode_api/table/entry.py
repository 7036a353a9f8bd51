"""Entries of a table: candidate draft steps per range of batch sizes; and the default tables."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Final, Protocol

from pydantic import AfterValidator, Field, StringConstraints

from specdecode_api.base import FileRecord
from specdecode_api.speculation import (
    BATCH_SIZE_PATTERN,
    MAX_CANDIDATES,
    MAX_STEPS,
    Algorithm,
    Policy,
)

MAX_CEILING_COEFF: Final = 16

BatchSizeKey = Annotated[str, StringConstraints(pattern=f"^{BATCH_SIZE_PATTERN}$")]

# Strict: neither "3" nor true is a number, here as in the resource.
_Int = Annotated[int, Field(strict=True)]
_Float = Annotated[float, Field(strict=True)]


def _each_once(steps: tuple[int, ...]) -> tuple[int, ...]:
    repeated = sorted(each for each, count in Counter(steps).items() if count > 1)
    if repeated:
        raise ValueError(f"every value may occur once: remove the repeated {repeated}")
    return steps


class TableEntry(FileRecord):
    """The draft steps that a range of batch sizes may use, and settings of policy ema."""

    candidate_steps: Annotated[
        tuple[Annotated[_Int, Field(ge=0, le=MAX_STEPS)], ...], AfterValidator(_each_once)
    ] = Field(
        min_length=1,
        max_length=MAX_CANDIDATES,
        description="Draft steps to choose from; 0 decodes without a draft.",
    )
    up_hysteresis: _Float = Field(
        default=0.0,
        ge=-16,
        le=16,
        description="Added to the accept length above which draft steps rise (policy ema).",
    )
    down_hysteresis: _Float = Field(
        default=-0.25,
        ge=-16,
        le=16,
        description="Added to the accept length below which draft steps fall (policy ema).",
    )
    ceiling_coeff: _Float = Field(
        default=0.0,
        ge=0,
        le=MAX_CEILING_COEFF,
        description="Caps draft steps at this multiple of the accept length (policy ema); "
        "0 sets no cap.",
    )
    ema_alpha: _Float = Field(
        default=0.2,
        gt=0,
        le=1,
        description="Weight of the latest step in the moving average (policy ema).",
    )
    update_interval: _Int = Field(
        default=5, ge=1, le=100_000, description="Steps between two decisions (policy ema)."
    )
    warmup_batches: _Int = Field(
        default=10, ge=0, le=100_000, description="Steps before the first decision (policy ema)."
    )


# SGLang's default, so that its launch commands behave the same here.
_EMA: Final = {
    "1": TableEntry(candidate_steps=(1, 3, 5, 7), down_hysteresis=-0.25),
    "8": TableEntry(candidate_steps=(0, 1, 3), down_hysteresis=0.0),
    "32": TableEntry(candidate_steps=(0, 1), down_hysteresis=0.0),
    "64": TableEntry(candidate_steps=(0,), down_hysteresis=0.0),
}
# One range: the measured costs decide which draft steps are too expensive at a batch size.
_GOODPUT: Final = {"1": TableEntry(candidate_steps=(0, 1, 2, 3, 5, 7))}


# A module is trained for one draft step, and its acceptance falls fast after that.
_MTP_STEPS: Final = 3
_MTP_EMA: Final = {
    bound: entry.model_copy(
        update={"candidate_steps": tuple(n for n in entry.candidate_steps if n <= _MTP_STEPS)}
    )
    for bound, entry in _EMA.items()
}
_MTP_GOODPUT: Final = {"1": TableEntry(candidate_steps=tuple(range(_MTP_STEPS + 1)))}

_TABLES: Final[Mapping[Policy, Mapping[str, TableEntry]]] = {
    Policy.STATIC: {},
    Policy.EMA: _EMA,
    Policy.GOODPUT: _GOODPUT,
}
_TABLES_BY_ALGORITHM: Final[Mapping[Algorithm, Mapping[Policy, Mapping[str, TableEntry]]]] = {
    Algorithm.MTP: {Policy.STATIC: {}, Policy.EMA: _MTP_EMA, Policy.GOODPUT: _MTP_GOODPUT},
}
OWN_DEFAULT_TABLE: Final = frozenset(_TABLES_BY_ALGORITHM)
"""Algorithms whose default tables differ from those of the others."""


def default_table(policy: Policy, algorithm: Algorithm | None = None) -> Mapping[str, TableEntry]:
    """The table where none is given; empty for `static`.

    Args:
        algorithm: one of `OWN_DEFAULT_TABLE` has a table of its own.
    """
    tables = _TABLES if algorithm is None else _TABLES_BY_ALGORITHM.get(algorithm, _TABLES)
    return MappingProxyType(tables[policy])


@dataclass(frozen=True, slots=True)
class SpeculationTable:
    """A table that was read, and warnings about it.

    `entries` maps the lower bound of a range, in digits, to its entry, bounds ascending; it is
    empty without a table. `policy` is the one that the document names.
    """

    entries: Mapping[str, TableEntry]
    warnings: tuple[str, ...] = ()
    policy: Policy | None = None


class TableError(ValueError):
    """Errors in a table; the message lists all of them, one per line."""

    def __init__(self, mistakes: tuple[str, ...]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = mistakes


class HasCandidates(Protocol):
    """An entry of the custom resource or of the boot file."""

    @property
    def candidate_steps(self) -> Collection[int]:
        """Draft steps to choose from."""


def candidates(entries: Mapping[str, HasCandidates]) -> tuple[int, ...]:
    """List the candidates of all entries once each, ascending."""
    return tuple(sorted({steps for entry in entries.values() for steps in entry.candidate_steps}))


def launch_error(num_steps: int, allowed: tuple[int, ...]) -> str | None:
    """Return the error if `num_steps` at start is not among the `allowed` candidates."""
    if not allowed or num_steps in allowed:
        return None
    return f"num_steps {num_steps} is in no entry of the table: use one of {list(allowed)}"
