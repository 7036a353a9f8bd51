"""The pod template of engines: what a user adds to the pods that the operator writes."""

from typing import Final

from pydantic import Field

from specdecode_api import names
from specdecode_api.base import ResourceRecord
from specdecode_api.v1alpha1.labels import Annotations, OwnLabels
from specdecode_api.v1alpha1.scalars import FreeObject

RESERVED_VARIABLES: Final = {
    "HOME": "it is /tmp",
    "HF_ENDPOINT": "use download.endpoint",
    "HF_HUB_DISABLE_TELEMETRY": "it is set by the operator",
    "HF_HUB_OFFLINE": "it is set by the operator",
    "HF_TOKEN": "use download.tokenSecret",
    "OMP_NUM_THREADS": "use engine.threads",
    names.VARIABLE_TERMINATION_MESSAGE_PATH: "it is set by the operator",
}
"""Environment variables of the operator, each with the remedy."""


class TemplateMetadata(ResourceRecord):
    """Labels and annotations that are added to pods."""

    labels: OwnLabels = Field(
        default={}, max_length=64, description="Labels of pods; keys of the operator are refused."
    )
    annotations: Annotations = Field(
        default={},
        max_length=64,
        description="Annotations of pods; keys of the operator are refused.",
    )


class TemplateSpec(ResourceRecord):
    """A PodTemplate that is merged into the operator's."""

    metadata: TemplateMetadata = Field(
        default=TemplateMetadata(), description="Labels and annotations to add."
    )
    spec: FreeObject = Field(
        default={},
        description="Fields of a PodSpec, merged into the operator's by a strategic merge: objects "
        "field by field, containers, volumes, variables and mounts by name, other lists as a "
        "whole; null removes a field. The containers of the operator are engine and, where models "
        "are downloaded, fetch. Fields that the operator manages are refused with the field to use "
        "instead. At most 16 KiB.",
    )
