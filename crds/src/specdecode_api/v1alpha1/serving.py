"""The endpoint of a deployment: who may call it, what it parses, how requests are counted."""

from typing import Literal

from pydantic import Field

from specdecode_api import names
from specdecode_api.base import ResourceRecord
from specdecode_api.parsers import ReasoningFormat, ToolFormat
from specdecode_api.v1alpha1.scalars import (
    ByteSize,
    CorsOrigin,
    HttpUrl,
    ObjectName,
    RequestLabel,
    SecretKey,
)


class ApiKeysSpec(ResourceRecord):
    """Keys that clients must present. Only the pods read the Secret, never the operator."""

    secret_name: ObjectName = Field(
        description="Secret of the same namespace that contains the keys, one per line; a change "
        "applies without a restart."
    )
    key: SecretKey | None = Field(
        default=None, description="Key of the Secret to read; all of them where absent."
    )


class TracingSpec(ResourceRecord):
    """A receiver of OpenTelemetry's protocol OTLP over HTTP, such as a collector."""

    endpoint: HttpUrl = Field(
        description="Its base URL, such as http://collector.observability:4318; spans go to "
        "v1/traces below it."
    )


class ResponsesSpec(ResourceRecord):
    """Responses of POST /v1/responses that clients may read and continue."""

    store: ByteSize | None = Field(
        default=None,
        description="Memory of each pod for stored responses, such as 256Mi: it counts towards the "
        "pod's memory, so add it to resources. A response is kept for at most an hour, the oldest "
        "dropped first, and lost with its pod; with several replicas, only routers find it "
        "(spec.router). None is stored where absent.",
    )


class Serving(ResourceRecord):
    """Who may use the endpoint, how responses are parsed, and how requests are counted."""

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
    page: bool = Field(
        default=False,
        description="Serve a page with a chat at / of every engine, which shows what speculation "
        "does; kubectl port-forward reaches it.",
    )
    responses: ResponsesSpec = Field(
        default=ResponsesSpec(), description="Stored responses of POST /v1/responses."
    )
    tool_parser: Literal["Auto", "None", ToolFormat] = Field(
        default="Auto",
        description="Format in which the model writes tool calls; Auto detects it from the chat "
        "template, None returns them as content. openai is harmony (gpt-oss).",
    )
    reasoning_parser: Literal["Auto", "None", ReasoningFormat] = Field(
        default="Auto",
        description="Format in which the model writes its reasoning; Auto detects it from the chat "
        "template, None returns it as content. openai_gptoss is harmony.",
    )
    tracing: TracingSpec | None = Field(
        default=None,
        description="Where the engine sends OpenTelemetry spans of its requests; it sends none "
        "where absent, unless its environment has OTEL_EXPORTER_OTLP_ENDPOINT.",
    )
