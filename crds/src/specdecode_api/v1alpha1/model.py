"""The checkpoints of a deployment: the target, and the draft that proposes tokens for it."""

from typing import Literal

from pydantic import Field

from specdecode_api.base import ResourceRecord
from specdecode_api.v1alpha1.scalars import Int, ServedName, Uri


class Model(ResourceRecord):
    """The target model."""

    uri: Uri = Field(
        description="Where the checkpoint lies: pvc://CLAIM/FOLDER in a volume claim of the same "
        "namespace, hf://ORG/NAME@REVISION on the Hugging Face hub (see download), "
        "oci://REGISTRY/REPOSITORY:TAG in an image, or file:///FOLDER on the node."
    )
    served_name: ServedName | None = Field(
        default=None, description="Name of the model in the API; the resource's name where absent."
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        default="auto", description="Type of the weights in memory; auto is the checkpoint's own."
    )
    context_length: Int | None = Field(
        default=None,
        ge=16,
        le=10_000_000,
        description="Longest prompt plus answer in tokens; the model's own where absent.",
    )


class DraftSpec(ResourceRecord):
    """The checkpoint that proposes tokens."""

    uri: Uri = Field(description="Where the draft's checkpoint lies, spelled as model.uri.")
