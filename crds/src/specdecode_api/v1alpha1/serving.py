"""The endpoint of a deployment: who may call it, and how its requests are counted."""

from pydantic import Field

from specdecode_api import names
from specdecode_api.base import ResourceRecord
from specdecode_api.v1alpha1.scalars import CorsOrigin, ObjectName, RequestLabel, SecretKey


class ApiKeysSpec(ResourceRecord):
    """Keys that clients must present. Only the pods read the Secret, never the operator."""

    secret_name: ObjectName = Field(
        description="Secret of the same namespace that contains the keys, one per line; a change "
        "applies without a restart."
    )
    key: SecretKey | None = Field(
        default=None, description="Key of the Secret to read; all of them where absent."
    )


class Serving(ResourceRecord):
    """Authorization of requests, and labels by which they are counted."""

    api_keys: ApiKeysSpec | None = Field(
        default=None,
        description="API keys, of which clients must present one as OpenAI's clients do; no key is "
        "required where absent.",
    )
    request_labels: list[RequestLabel] = Field(
        default=[],
        max_length=names.MAX_REQUEST_LABELS,
        description=f"Values of the header {names.HEADER_LABEL} by which requests are counted "
        "separately, such as code and chat; any other value counts as none.",
    )
    cors_origins: list[CorsOrigin] = Field(
        default=[],
        max_length=names.MAX_CORS_ORIGINS,
        description="Origins of web pages that may use the API from a browser, such as "
        "https://chat.example.com; * permits all. None may if empty.",
    )
