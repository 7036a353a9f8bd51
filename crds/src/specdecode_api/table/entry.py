"""Entries of a table: candidate draft steps per range of batch sizes; and the default tables."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Final, Protocol

from pydantic import AfterValidator, Field, StringConstraints

from specdecode_api.base import FileRecord
from specdecode_api.speculation import (
    BATCH_SIZE_PATTERN,
    MAX_CANDIDATES,
    MAX_DRAFT_TOKENS,
    MAX_STEPS,
    MOST_DEFAULT_STEPS,
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
    verify_tokens: _Int | None = Field(
        default=None,
        ge=1,
        le=MAX_DRAFT_TOKENS - 1,
        description="Drafted tokens that a step verifies, on average over its requests; the draft "
        "model's confidence head or probabilities divide them among the requests. Null verifies "
        "all that are drafted.",
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


# SGLang's default up to 7 draft steps, so that its launch commands behave the same here.
_EMA: Final = {
    "1": TableEntry(candidate_steps=(1, 3, 5, 7, 11, 15), down_hysteresis=-0.25),
    "8": TableEntry(candidate_steps=(0, 1, 3), down_hysteresis=0.0),
    "32": TableEntry(candidate_steps=(0, 1), down_hysteresis=0.0),
    "64": TableEntry(candidate_steps=(0,), down_hysteresis=0.0),
}
# One range: the measured costs decide which draft steps are too expensive at a batch size.
_GOODPUT: Final = {"1": TableEntry(candidate_steps=(0, 1, 2, 3, 5, 7, 11, 15))}
_TABLES: Final[Mapping[Policy, Mapping[str, TableEntry]]] = {
    Policy.STATIC: {},
    Policy.EMA: _EMA,
    Policy.GOODPUT: _GOODPUT,
}


def default_table(policy: Policy, most_steps: int = MOST_DEFAULT_STEPS) -> Mapping[str, TableEntry]:
    """The table where none is given, up to `most_steps` draft steps; empty for `static`."""
    table = {}
    for bound, entry in _TABLES[policy].items():
        steps = tuple(steps for steps in entry.candidate_steps if steps <= most_steps)
        if max(entry.candidate_steps) > most_steps > max(steps, default=0):
            steps = (*steps, most_steps)
        table[bound] = entry.model_copy(update={"candidate_steps": steps})
    return MappingProxyType(table)


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


class HasThresholds(HasCandidates, Protocol):
    """An entry of the custom resource or of the boot file."""

    @property
    def up_hysteresis(self) -> float:
        """Added to the accept length above which draft steps rise."""

    @property
    def down_hysteresis(self) -> float:
        """Added to the accept length below which draft steps fall."""

    @property
    def ceiling_coeff(self) -> float:
        """Multiple of the accept length that caps draft steps; 0: none."""


def candidates(entries: Mapping[str, HasCandidates]) -> tuple[int, ...]:
    """List the candidates of all entries once each, ascending."""
    return tuple(sorted({steps for entry in entries.values() for steps in entry.candidate_steps}))


class HasVerifyTokens(HasCandidates, Protocol):
    """An entry of the custom resource or of the boot file."""

    @property
    def verify_tokens(self) -> int | None:
        """Drafted tokens that a step verifies of a request on average."""


def verify_tokens_error(
    entries: Mapping[str, HasVerifyTokens],
    policy: Policy,
    algorithm: Algorithm,
    *,
    has_fallback: bool,
) -> str | None:
    """Return the error if entries bound the verified tokens where nothing can divide them."""
    found = {at: one.verify_tokens for at, one in entries.items() if one.verify_tokens is not None}
    divides = algorithm.takes_draft and not has_fallback and policy is not Policy.EMA
    if not found or divides:
        return None
    place, value = next(iter(found.items()))
    return (
        f"verify_tokens {value} of entry {place} is for a draft model alone under policy goodput "
        f"or static; algorithm is {algorithm}, fallback {'NGRAM' if has_fallback else 'none'}, "
        f"policy {policy}: remove verify_tokens, or change these"
    )


def undrafted_error(
    entries: Mapping[str, HasVerifyTokens], drafted: Callable[[int], int]
) -> str | None:
    """Return the error if an entry verifies more tokens than any of its candidates drafts.

    Args:
        drafted: the tokens that a request drafts, by draft steps.
    """
    for place, entry in entries.items():
        most = max(map(drafted, entry.candidate_steps))
        if entry.verify_tokens is not None and entry.verify_tokens > most:
            return (
                f"verify_tokens {entry.verify_tokens} of entry {place} is above the {most} tokens "
                f"that its candidate_steps {sorted(entry.candidate_steps)} draft at most: lower it "
                "or remove it, or add more draft steps"
            )
    return None


def launch_error(num_steps: int, allowed: tuple[int, ...]) -> str | None:
    """Return the error if `num_steps` at start is not among the `allowed` candidates."""
    if not allowed or num_steps in allowed:
        return None
    return f"num_steps {num_steps} is in no entry of the table: use one of {list(allowed)}"
