"""How models of `hf://` reach the pods: where they are kept, and by which token they are read."""

from typing import ClassVar

from pydantic import Field

from specdecode_api.base import ResourceRecord
from specdecode_api.rules import Rule
from specdecode_api.v1alpha1.scalars import ByteSize, ObjectName, SecretKey, WebAddress


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
