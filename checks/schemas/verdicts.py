"""Which schemas a library compiles, which instances it admits, and how long compiling takes."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median, quantiles

from checks.schemas.corpora import SchemaCase


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which instances a compiled schema admits; None if the schema was refused."""

    admitted: tuple[bool, ...] | None
    compile_s: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class GroupResult:
    """The verdicts of one library on one group of schemas."""

    schemas: int
    compiled: int
    compliant: int
    valid_refused: int
    invalid: int
    invalid_admitted: int
    median_compile_ms: float
    p99_compile_ms: float


def summarize(cases: Iterable[SchemaCase], verdicts: Iterable[Verdict]) -> GroupResult:
    """Count the verdicts. A compliant schema is compiled, and right about each instance."""
    pairs = [*zip(cases, verdicts, strict=True)]
    known = [
        (case.instances, verdict.admitted)
        for case, verdict in pairs
        if verdict.admitted is not None
    ]
    judged = [
        [(valid, found) for (_, valid), found in zip(instances, admitted, strict=True)]
        for instances, admitted in known
    ]
    flat = [each for instances in judged for each in instances]
    times_ms = [1e3 * verdict.compile_s for _, verdict in pairs if verdict.admitted is not None]
    return GroupResult(
        schemas=len(pairs),
        compiled=len(known),
        compliant=sum(all(valid == found for valid, found in each) for each in judged),
        valid_refused=sum(valid and not found for valid, found in flat),
        invalid=sum(not valid for valid, _ in flat),
        invalid_admitted=sum(found and not valid for valid, found in flat),
        median_compile_ms=median(times_ms) if times_ms else 0.0,
        p99_compile_ms=quantiles(times_ms, n=100)[-1] if len(times_ms) > 1 else 0.0,
    )
