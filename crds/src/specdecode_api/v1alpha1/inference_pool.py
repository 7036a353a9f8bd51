"""The InferencePool of a deployment, through which a Gateway sends requests to its engines.

Names are those of the Gateway API Inference Extension, so that its examples can be copied.
"""

from typing import Final, Literal

from pydantic import Field

from specdecode_api.base import HotRecord
from specdecode_api.v1alpha1.scalars import Int, ObjectName

DEFAULT_PICKER_PORT: Final = 9002


class EndpointPickerPort(HotRecord):
    """A port of the endpoint picker's Service."""

    number: Int = Field(
        default=DEFAULT_PICKER_PORT,
        ge=1,
        le=65535,
        description="Port of the Service at which the endpoint picker takes gRPC calls (ext-proc).",
    )


class EndpointPickerRef(HotRecord):
    """The endpoint picker (EPP), which chooses an engine for each request of the Gateway."""

    name: ObjectName = Field(
        description="Service of the endpoint picker, in the same namespace. The operator does not "
        "create it."
    )
    port: EndpointPickerPort = Field(
        default=EndpointPickerPort(), description="Port of the Service."
    )
    failure_mode: Literal["FailOpen", "FailClose"] = Field(
        default="FailClose",
        description="What the Gateway does while the endpoint picker does not answer: FailOpen "
        "sends requests to any engine, FailClose refuses them.",
    )


class InferencePoolSpec(HotRecord):
    """The InferencePool that the operator keeps; it has the name of the resource."""

    endpoint_picker_ref: EndpointPickerRef = Field(
        description="The endpoint picker that the Gateway calls."
    )
