"""The boot file's server: addresses, limits of requests, keys and formats."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from specdecode_api import names
from specdecode_api.base import FileRecord
from specdecode_api.boot.speculation import CheckpointPath
from specdecode_api.parsers import ReasoningFormat, ToolFormat

LOOPBACK = "127.0.0.1"
HttpUrl = Annotated[str, StringConstraints(max_length=2048, pattern=f"^{names.HTTP_URL_PATTERN}$")]
CorsOrigin = Annotated[
    str, StringConstraints(max_length=255, pattern=f"^({names.CORS_ORIGIN_PATTERN})$")
]
RequestLabel = Annotated[str, StringConstraints(pattern=f"^{names.REQUEST_LABEL_PATTERN}$")]
ToolParserName = Literal["auto", "none", ToolFormat]
ReasoningParserName = Literal["auto", "none", ReasoningFormat]


class ServerBoot(FileRecord):
    """Addresses, drain time, authorization and parsers of the HTTP server."""

    host: str = Field(default="0.0.0.0", description="Address of the API to listen on.")
    port: int = Field(
        default=names.ENGINE_PORT,
        ge=0,
        le=65535,
        description="Port of the API; 0 selects a free port.",
    )
    management_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="Port of probes, metrics, /server_info and the speculation table, which the "
        f"API port then does not serve; {names.MANAGEMENT_PORT} if null. 0, or the API's port: one "
        "port serves everything.",
    )
    management_host: str | None = Field(
        default=None,
        description="Address of the management port; if null that of the API, but "
        f"{LOOPBACK} where management_port is null or set by a flag.",
    )
    drain_socket: Annotated[str, StringConstraints(min_length=1, max_length=107)] | None = Field(
        default=None,
        description="Path of the Unix socket for specdecode-engine drain and undrain; if null, "
        "HOST-PORT.sock in $XDG_RUNTIME_DIR/specdecode, or else in specdecode-UID in the folder "
        "for temporary files.",
    )
    drain_seconds: float = Field(
        default=30.0,
        ge=0,
        le=86_400,
        description="Maximum wait for running requests after SIGTERM.",
    )
    max_body_bytes: int | None = Field(
        default=None,
        ge=1024,
        le=2**30,
        description="Maximum size of a request's body; 4 MiB if null. The limit is 64 KiB + 8 x "
        "context length x longest token in bytes if that is less.",
    )
    step_timeout_seconds: float = Field(
        default=300.0,
        ge=0,
        le=86_400,
        description="A step that takes longer fails the liveness probe, so that Kubernetes "
        "restarts the container; 0 disables this.",
    )
    engine_process: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="Run the engine in a process of its own, which starts again when it dies, "
        "without a restart of the server; auto is on with several ranks, else off.",
    )
    api_key_path: CheckpointPath | None = Field(
        default=None,
        description="File with API keys, one per line, or folder of such files; it is read again "
        "when it changes. If null, no API key is required.",
    )
    router_token_path: CheckpointPath | None = Field(
        default=None,
        description="File with tokens of routers, one per line, or folder of such files, read "
        "again when it changes. If null, the endpoints for routers are not served; they need a "
        "management port of its own.",
    )
    owner: Annotated[str, StringConstraints(min_length=1, max_length=64)] | None = Field(
        default=None,
        description=f"A request with this value in the header {names.HEADER_OWNER} may replace the "
        "table without an API key or a token; the engine never returns it. With router_token_path, "
        "changes on the management port need it or a token, and no API key.",
    )
    request_labels: tuple[RequestLabel, ...] = Field(
        default=(),
        max_length=names.MAX_REQUEST_LABELS,
        description=f"Values of the header {names.HEADER_LABEL} by which requests are counted "
        "separately; any other value counts as none.",
    )
    cors_origins: tuple[CorsOrigin, ...] = Field(
        default=(),
        max_length=names.MAX_CORS_ORIGINS,
        description="Origins of web pages that may use the API from a browser, such as "
        "https://chat.example.com; * permits all. None may if empty.",
    )
    tracing_endpoint: HttpUrl | None = Field(
        default=None,
        description="Base URL of a receiver of OTLP over HTTP, such as http://127.0.0.1:4318, to "
        "which spans of requests are sent. If null, OTEL_EXPORTER_OTLP_ENDPOINT of the environment "
        "names it, and without that no spans are made.",
    )
    response_store_bytes: int | None = Field(
        default=None,
        ge=2**20,
        lt=2**63,
        description="Memory for responses of POST /v1/responses that clients may read and "
        "continue, for at most an hour, the oldest dropped first. If null, none is stored.",
    )
    request_headers_timeout_seconds: float = Field(
        default=10.0,
        gt=0,
        le=3600,
        description="Maximum time from the first byte of a request to the end of its headers; "
        "then the connection is closed, with 408 if possible.",
    )
    request_body_timeout_seconds: float = Field(
        default=60.0,
        gt=0,
        le=3600,
        description="Maximum time from the end of a request's headers to the end of its body; "
        "then the connection is closed, with 408 if possible.",
    )
    prompt_tokens_details: bool = Field(
        default=False,
        description="Report in usage how many prompt tokens were read from the prefix cache. A "
        "client can then find out which prompts other clients sent.",
    )
    metrics_on_api_port: bool = Field(
        default=False,
        description="Serve /metrics, /server_info and /get_server_info on the port of the API too, "
        "where they need an API key if there are keys: for benchmarks that know one port alone.",
    )
    page: bool | None = Field(
        default=None,
        description="Serve a page with a chat at /, which loads nothing from elsewhere; if null, "
        "only where host is an address of this machine alone.",
    )
    tool_parser: ToolParserName = Field(
        default="auto",
        description="Format in which the model writes tool calls; auto detects it from the chat "
        "template, none returns them as content. openai is harmony (gpt-oss).",
    )
    reasoning_parser: ReasoningParserName = Field(
        default="auto",
        description="Format in which the model writes its reasoning; auto detects it from the chat "
        "template, none returns it as content. openai_gptoss is harmony.",
    )

    @property
    def management_address(self) -> tuple[str, int] | None:
        """Host and port of management; None if the port of the API serves everything."""
        if self.management_port is None:
            return self.management_host or LOOPBACK, names.MANAGEMENT_PORT
        if self.management_port in (0, self.port):
            return None
        return self.management_host or self.host, self.management_port

    @model_validator(mode="after")
    def _check_default_port(self) -> "ServerBoot":
        if self.management_port is None and self.port == names.MANAGEMENT_PORT:
            raise ValueError(
                f"the API's port is {self.port}, which is the default of management_port: set "
                "management_port to another port, or to 0 for one port that serves everything"
            )
        return self

    @model_validator(mode="after")
    def _check_router_token(self) -> "ServerBoot":
        if self.router_token_path is not None and self.management_address is None:
            raise ValueError(
                f"router_token_path needs a management port of its own, and management_port is "
                f"{self.management_port}: set it to a free port, such as {names.MANAGEMENT_PORT}"
            )
        return self
