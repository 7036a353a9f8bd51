"""What an engine serves, and within which limits of memory, requests and time."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator

from specdecode_api import names
from specdecode_api.boot.graphs import GraphsBoot
from specdecode_api.boot.speculation import CheckpointPath, SpeculationBoot
from specdecode_api.document import FileRecord
from specdecode_api.speculation import MAX_PAGE_SIZE

CPU_LIST = r"^\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*$"
"""Numbers and ranges of processors, with commas between."""

BOOT_VERSION: Literal[1] = 1

Dtype = Literal["auto", "bfloat16", "float16", "float32", "float64"]


class ModelBoot(FileRecord):
    """The target: where its checkpoint lies and under which name it is served."""

    path: CheckpointPath = Field(description="Folder of the checkpoint, in Hugging Face format.")
    served_name: Annotated[str, StringConstraints(min_length=1, max_length=253)] | None = Field(
        default=None, description="Name of the model in the API; the folder's name where null."
    )
    dtype: Dtype = Field(
        default="auto",
        description="Type of the weights in memory; auto is the checkpoint's own.",
    )
    context_length: int | None = Field(
        default=None,
        ge=16,
        le=10_000_000,
        description="Longest prompt plus answer in tokens; the model's own where null.",
    )


AttentionBackendName = Literal["auto", "torch", "triton", "flashinfer"]


class MemoryBoot(FileRecord):
    """How the key-value cache is cut and how large it may grow."""

    page_size: int = Field(
        default=16,
        ge=1,
        le=MAX_PAGE_SIZE,
        description="Tokens in a page of the key-value cache; a power of two.",
    )
    kv_cache_bytes: int | None = Field(
        default=None, ge=1, description="Size of the key-value cache; what is left where null."
    )
    kv_cache_fraction: float = Field(
        default=0.85,
        gt=0,
        le=1,
        description="Part of the free memory that the cache takes where kv_cache_bytes is null.",
    )
    kv_cache_dtype: Literal["auto", "fp8_e4m3"] = Field(
        default="auto",
        description="Type that keys and values are kept in; auto is that of the weights, fp8_e4m3 "
        "takes half of bfloat16's memory and rounds, so that texts differ from auto's.",
    )
    prefix_cache: bool = Field(
        default=True,
        description="Keep the key-value pages of ended requests for others that begin the same.",
    )

    @field_validator("page_size")
    @classmethod
    def _is_power_of_two(cls, page_size: int) -> int:
        if page_size & (page_size - 1):
            raise ValueError("page_size must be a power of two: use 1, 2, 4, … 256")
        return page_size


class SchedulingBoot(FileRecord):
    """How many requests run and wait, and how prompts are cut into chunks."""

    max_running_requests: int = Field(
        default=64, ge=1, le=4096, description="Requests that decode together."
    )
    max_queued_requests: int = Field(
        default=512,
        ge=0,
        le=1_000_000,
        description="Requests that may wait; one more is answered with 429.",
    )
    chunked_prefill_tokens: int = Field(
        default=512,
        ge=1,
        le=1_000_000,
        description="Prompt tokens computed between two decode rounds.",
    )
    overlap: bool | None = Field(
        default=None,
        description="Launch a step before the results of the one before are looked at; "
        "null does so where the device computes beside the host, on a GPU.",
    )


RequestLabel = Annotated[str, StringConstraints(pattern=f"^{names.REQUEST_LABEL_PATTERN}$")]


class ServerBoot(FileRecord):
    """Where the engine listens and how long it drains."""

    host: str = Field(default="0.0.0.0", description="Address to listen on.")
    port: int = Field(
        default=names.ENGINE_PORT, ge=0, le=65535, description="Port to listen on; 0 is any."
    )
    drain_seconds: float = Field(
        default=30.0,
        ge=0,
        le=86_400,
        description="Longest wait for running requests after the signal to stop.",
    )
    api_key_path: CheckpointPath | None = Field(
        default=None,
        description="File with API keys, one in a line, or folder of such files, of which clients "
        "must show one; read again when it changes. No key is asked for where null.",
    )
    owner: Annotated[str, StringConstraints(min_length=1, max_length=64)] | None = Field(
        default=None,
        description=f"Who shows this in the header {names.HEADER_OWNER} may exchange the table "
        "without an API key; the engine never tells it.",
    )
    request_labels: tuple[RequestLabel, ...] = Field(
        default=(),
        max_length=names.MAX_REQUEST_LABELS,
        description=f"Values of the header {names.HEADER_LABEL} that requests are counted apart "
        "by; every other value counts as none.",
    )


class EngineBoot(FileRecord):
    """The whole boot file, version 1."""

    version: Literal[1] = Field(default=BOOT_VERSION, description="Version of this format.")
    config_hash: Annotated[str, StringConstraints(max_length=names.MAX_CONFIG_HASH_LENGTH)] = Field(
        default="",
        description="What the configuration is called in metrics; empty where nobody named it. "
        "It changes nothing else.",
    )
    model: ModelBoot = Field(description="The target model.")
    speculation: SpeculationBoot = Field(default=SpeculationBoot(), description="How to draft.")
    memory: MemoryBoot = Field(default=MemoryBoot(), description="The key-value cache.")
    graphs: GraphsBoot = Field(default=GraphsBoot(), description="Captured passes.")
    scheduling: SchedulingBoot = Field(
        default=SchedulingBoot(), description="How many requests run and wait."
    )
    server: ServerBoot = Field(default=ServerBoot(), description="The HTTP server.")
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="What the engine computes on; auto prefers cuda."
    )
    attention_backend: AttentionBackendName = Field(
        default="auto",
        description="Who computes attention and writes the cache; auto is triton where it can run "
        "on a GPU, kernels in C on a CPU, and torch elsewhere. One that cannot run is an error "
        "at start.",
    )
    threads: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Processor threads on a CPU; the engine's choice where null.",
    )
    cpu_affinity: Annotated[str, StringConstraints(pattern=CPU_LIST)] | None = Field(
        default=None,
        description="Processors that the engine's threads keep to, as taskset writes them "
        "(0-3,8); all that it may use where null. The server's own thread stays free.",
    )
