"""The router in front of a deployment's engines: how many, and how often it resumes."""

from typing import Annotated, ClassVar, Final

from pydantic import Field

from specdecode_api import names
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
from specdecode_api.v1alpha1.scalars import Duration, FreeObject, Int, within
from specdecode_api.v1alpha1.template import TemplateMetadata, TemplateSpec

DEFAULT_REPLICAS: Final = 2
DEFAULT_RETRIES: Final = 2
DEFAULT_TIMEOUT: Final = "60s"
DEFAULT_MAX_CONNECTIONS: Final = 4096
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


class RouterTemplateMetadata(TemplateMetadata, HotRecord):
    """Labels and annotations that are added to router pods."""


class RouterTemplateSpec(TemplateSpec, HotRecord):
    """A PodTemplate that is merged into that of routers."""

    metadata: RouterTemplateMetadata = Field(
        default=RouterTemplateMetadata(), description="Labels and annotations to add."
    )
    spec: FreeObject = Field(
        default={},
        description="Fields of a PodSpec, merged into the operator's as those of spec.template "
        "are; the operator's container is router. Fields that the operator manages are refused "
        "with the field to use instead. At most 16 KiB.",
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
    timeout: Annotated[Duration, within("0s", "1h")] = Field(
        default=DEFAULT_TIMEOUT,
        description="How long a request waits for an engine that accepts it, unless its header "
        f"{names.HEADER_TIMEOUT} has other seconds.",
    )
    max_connections: Int = Field(
        default=DEFAULT_MAX_CONNECTIONS,
        ge=1,
        le=100_000,
        description="Most connections of clients to a router; more are answered with 503.",
    )
    template: RouterTemplateSpec = Field(
        default=RouterTemplateSpec(),
        description="PodTemplate of the routers, for scheduling, labels, environment variables, "
        "sidecars and volumes.",
    )
