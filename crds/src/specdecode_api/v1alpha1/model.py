"""The checkpoints of a deployment, target and draft, and how those of `hf://` reach the pods."""

from typing import ClassVar, Literal

from pydantic import Field

from specdecode_api.base import HOT, ResourceRecord
from specdecode_api.rules import Rule
from specdecode_api.v1alpha1.scalars import (
    ByteSize,
    Int,
    ObjectName,
    SecretKey,
    ServedName,
    Uri,
    WebAddress,
)


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
    quantization: Literal["Auto", "None", "Int8", "Int4"] = Field(
        default="Auto",
        description="Weights of linear layers and experts, also of a draft: Int8 quantizes "
        "them to 8 bits, Int4 to 4 bits and the head to 8; with Auto they have dtype, or stay as a "
        "quantized checkpoint stores them where kernels take these; None dequantizes it.",
    )
    sum_order: Literal["Auto", "Inputs", "Blocks32"] = Field(
        default="Auto",
        description="Order in which linear maps on a CPU add products: Inputs adds one after the "
        "other; Blocks32, for dtype bfloat16 alone, adds blocks of 32 inputs as Intel's AMX does, "
        "with the same bits on processors without it. Auto is Inputs. A change may change the last "
        "bit of texts.",
    )
    context_length: Int | None = Field(
        default=None,
        ge=16,
        le=10_000_000,
        description="Longest prompt plus answer in tokens; the model's own where absent.",
    )


class DraftSpec(ResourceRecord):
    """The checkpoint that proposes tokens."""

    uri: Uri = Field(
        description="Where the draft's checkpoint lies, spelled as model.uri. Running engines of "
        "one rank exchange a draft of the same config and shapes on the same PVC; otherwise pods "
        "are replaced.",
        json_schema_extra=HOT,
    )


class TokenSecret(ResourceRecord):
    """A key of a Secret of the same namespace. Only the pods read it, never the operator."""

    name: ObjectName = Field(description="Name of the Secret.")
    key: SecretKey = Field(
        default="HF_TOKEN", description="Key under which the Secret holds the token."
    )


class DownloadSpec(ResourceRecord):
    """How models of hf:// reach the pods. Target and draft share it."""

    cache_claim: ObjectName | None = Field(
        default=None,
        description="PersistentVolumeClaim of the same namespace in which downloads are kept, for "
        "all pods and all deployments that name it; where absent every pod downloads into a volume "
        "of its own (emptyDir) that goes when the pod goes.",
    )
    cache_size_limit: ByteSize | None = Field(
        default=None,
        description="Limit of a pod's own volume, such as 40Gi; the node's disk where absent.",
    )
    token_secret: TokenSecret | None = Field(
        default=None, description="Token for private and gated models; none where absent."
    )
    endpoint: WebAddress | None = Field(
        default=None,
        description="Address of a mirror that speaks the hub's protocol; https://huggingface.co "
        "where absent.",
    )

    rules: ClassVar[tuple["Rule[DownloadSpec]", ...]] = (
        Rule(
            cel="!has(self.cacheClaim) || !has(self.cacheSizeLimit)",
            holds=lambda it: it.cache_claim is None or it.cache_size_limit is None,
            message="cacheSizeLimit limits a pod's own volume, and a claim has a size of its own: "
            "remove cacheSizeLimit or cacheClaim",
            field="cacheSizeLimit",
            reason="FieldValueForbidden",
        ),
    )
