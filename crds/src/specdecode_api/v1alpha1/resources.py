"""Compute resources of an engine's container, in the words of Kubernetes."""

import re
from collections.abc import Iterator
from typing import Annotated, ClassVar, Final

from pydantic import BeforeValidator, Field

from specdecode_api.base import ResourceRecord, without_nulls
from specdecode_api.quantity import amount
from specdecode_api.rules import Checked, Rule
from specdecode_api.v1alpha1.scalars import Quantity

MAX_NAMES: Final = 16
MAX_NAME_LENGTH: Final = 316

_NAME_PATTERN: Final = "([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
_IS_NAME: Final = f"(k.size() <= {MAX_NAME_LENGTH} && k.matches('^{_NAME_PATTERN}$'))"


def _is_name(text: str) -> bool:
    return len(text) <= MAX_NAME_LENGTH and re.fullmatch(_NAME_PATTERN, text) is not None


_NAMES_RULE: Final[Rule[dict[str, str]]] = Rule(
    cel=f"self.all(k, {_IS_NAME})",
    holds=lambda quantities: all(_is_name(name) for name in quantities),
    message="a resource is named as Kubernetes names it, such as cpu, memory or nvidia.com/gpu",
)

Quantities = Annotated[dict[str, Quantity], Checked(_NAMES_RULE), BeforeValidator(without_nulls)]

ACCELERATOR_DOMAIN: Final = "nvidia.com/"
WHOLE_GPU: Final = f"{ACCELERATOR_DOMAIN}gpu"
IS_ACCELERATOR: Final = f"k.startsWith('{ACCELERATOR_DOMAIN}')"


def is_accelerator(name: str) -> bool:
    """Return whether a resource of this name is an accelerator, or a part of one."""
    return name.startswith(ACCELERATOR_DOMAIN)


_HAS_LIMITS: Final = "has(self.limits)"
_EXCEEDS: Final = (
    "(k in self.limits && quantity(string(self.requests[k]))"
    ".compareTo(quantity(string(self.limits[k]))) > 0)"
)


REQUESTS_WITHIN_LIMITS: Final[Rule["Resources"]] = Rule(
    cel=f"!has(self.requests) || !{_HAS_LIMITS} || !self.requests.exists(k, {_EXCEEDS})",
    holds=lambda it: not it.are_written("limits", "requests") or not it.requests_above_limits(),
    message="a request must not exceed the limit of the same name: "
    "lower the request or raise the limit",
    field="requests",
)


def within_default_limit(name: str, limit: str) -> "Rule[Resources]":
    """Compare a request with the default of its limit, where limits are absent."""
    return Rule(
        cel=_compared("requests", "limits", name, limit, "<="),
        holds=lambda it: it.are_written("limits") or name not in it.requests_above_limits(),
        message=f"limits are absent, and the default limit of {name} is {limit}, which the request "
        f"exceeds: write limits too, or lower requests.{name}",
        field="requests",
    )


def above_default_request(name: str, request: str) -> "Rule[Resources]":
    """Compare a limit with the default of its request, where requests are absent."""
    return Rule(
        cel=_compared("limits", "requests", name, request, ">="),
        holds=lambda it: it.are_written("requests") or name not in it.requests_above_limits(),
        message=f"requests are absent, and the default request of {name} is {request}, which "
        f"exceeds the limit: write requests too, or raise limits.{name}",
        field="limits",
    )


def _compared(field: str, other: str, name: str, default: str, comparison: str) -> str:
    """CEL that compares a quantity of a field with the default of the other, absent one."""
    quantity = f"quantity(string(self.{field}['{name}']))"
    return (
        f"!has(self.{field}) || has(self.{other}) || !('{name}' in self.{field}) || "
        f"{quantity}.compareTo(quantity('{default}')) {comparison} 0"
    )


class Resources(ResourceRecord):
    """Compute resources of an engine's container."""

    limits: Quantities = Field(
        default={},
        max_length=MAX_NAMES,
        description="Hard limits, such as nvidia.com/gpu: 1 or nvidia.com/mig-1g.10gb: 1.",
    )
    requests: Quantities = Field(
        default={},
        max_length=MAX_NAMES,
        description="What the scheduler reserves; the limit where absent.",
    )

    rules: ClassVar[tuple["Rule[Resources]", ...]] = (
        REQUESTS_WITHIN_LIMITS,
        Rule(
            cel=f"!{_HAS_LIMITS} || self.limits.filter(k, {IS_ACCELERATOR}).size() <= 1",
            holds=lambda it: sum(map(is_accelerator, it.limits)) <= 1,
            message="an engine computes on accelerators of one kind: keep one of the limits under "
            f"{ACCELERATOR_DOMAIN}, such as {WHOLE_GPU} or nvidia.com/mig-1g.10gb",
            field="limits",
        ),
    )

    def accelerators(self) -> Iterator[tuple[str, str]]:
        """Yield the accelerators, or parts of one, of limits and requests: name and quantity."""
        for quantities in (self.limits, self.requests):
            yield from (each for each in quantities.items() if is_accelerator(each[0]))

    def are_written(self, *fields: str) -> bool:
        """Whether a user wrote these fields, so that they have no default."""
        return self.model_fields_set.issuperset(fields)

    def requests_above_limits(self) -> tuple[str, ...]:
        return tuple(
            name
            for name, requested in self.requests.items()
            if name in self.limits and amount(requested) > amount(self.limits[name])
        )
