"""Compute resources of an engine's container, in the words of Kubernetes."""

import re
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
_IS_ACCELERATOR: Final = f"k.startsWith('{ACCELERATOR_DOMAIN}')"

_EXCEEDS: Final = (
    "(k in self.limits && quantity(string(self.requests[k]))"
    ".compareTo(quantity(string(self.limits[k]))) > 0)"
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
        Rule(
            cel=f"!self.requests.exists(k, {_EXCEEDS})",
            holds=lambda resources: not resources.requests_above_limits(),
            message="a request must not exceed the limit of the same name: "
            "lower the request or raise the limit",
            field="requests",
        ),
        Rule(
            cel=f"self.limits.filter(k, {_IS_ACCELERATOR}).size() <= 1",
            holds=lambda resources: len(resources.accelerators()) <= 1,
            message="an engine computes on one accelerator: keep one of the limits under "
            f"{ACCELERATOR_DOMAIN}, such as nvidia.com/gpu or nvidia.com/mig-1g.10gb",
            field="limits",
        ),
        Rule(
            cel=f"self.limits.all(k, !{_IS_ACCELERATOR} || "
            "quantity(string(self.limits[k])).compareTo(quantity('1')) <= 0)",
            holds=lambda it: all(amount(it.limits[name]) <= 1 for name in it.accelerators()),
            message="an engine computes on one accelerator and would leave the others idle: "
            "write 1, and raise replicas for more engines",
            field="limits",
        ),
    )

    def accelerators(self) -> tuple[str, ...]:
        """Name the accelerators, or parts of one, that are asked for."""
        return tuple(name for name in self.limits if name.startswith(ACCELERATOR_DOMAIN))

    def requests_above_limits(self) -> tuple[str, ...]:
        return tuple(
            name
            for name, requested in self.requests.items()
            if name in self.limits and amount(requested) > amount(self.limits[name])
        )
