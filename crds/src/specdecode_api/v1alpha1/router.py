"""The router in front of a deployment's engines: how many, and how often it resumes."""

from typing import ClassVar, Final

from pydantic import Field

from specdecode_api.base import HotRecord
from specdecode_api.rules import Rule
from specdecode_api.v1alpha1.resources import (
    ACCELERATOR_DOMAIN,
    IS_ACCELERATOR,
    MAX_NAMES,
    REQUESTS_WITHIN_LIMITS,
    Quantities,
    Resources,
    above_default_request,
    within_default_limit,
)
from specdecode_api.v1alpha1.scalars import Int

DEFAULT_REPLICAS: Final = 2
DEFAULT_RETRIES: Final = 2
DEFAULT_LIMITS: Final = {"memory": "1Gi"}
DEFAULT_REQUESTS: Final = {"cpu": "200m", "memory": "160Mi"}


class RouterResources(Resources, HotRecord):
    """Compute resources of a router's container."""

    limits: Quantities = Field(
        default=DEFAULT_LIMITS,
        max_length=MAX_NAMES,
        description="Hard limits; a router holds the bodies of the requests that it carries.",
    )
    requests: Quantities = Field(
        default=DEFAULT_REQUESTS,
        max_length=MAX_NAMES,
        description="What the scheduler reserves; the limit where absent.",
    )

    rules: ClassVar[tuple["Rule[Resources]", ...]] = (
        REQUESTS_WITHIN_LIMITS,
        *(within_default_limit(*each) for each in DEFAULT_LIMITS.items()),
        *(above_default_request(*each) for each in DEFAULT_REQUESTS.items()),
        Rule(
            cel=" && ".join(
                f"(!has(self.{field}) || self.{field}.all(k, !{IS_ACCELERATOR}))"
                for field in ("limits", "requests")
            ),
            holds=lambda it: not any(it.accelerators()),
            message="a router computes on no accelerator and would leave it idle: remove what is "
            f"under {ACCELERATOR_DOMAIN} from limits and requests",
            reason="FieldValueForbidden",
        ),
    )


class RouterSpec(HotRecord):
    """Routers: they continue streams of lost engines, and send requests to known prefixes."""

    replicas: Int = Field(
        default=DEFAULT_REPLICAS,
        ge=1,
        le=100,
        description="Router pods; a single one cuts its streams when its node is drained.",
    )
    resources: RouterResources = Field(
        default=RouterResources(), description="Compute resources of a router pod."
    )
    retries: Int = Field(
        default=DEFAULT_RETRIES,
        ge=0,
        le=10,
        description="How often a request may lose its engine without a new token in between; it "
        "ends with an error then.",
    )
