"""One engine: its image, its device, its memory, its limits."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from specdecode_api.base import HOT, ResourceRecord
from specdecode_api.rules import Rule
from specdecode_api.v1alpha1.runtime_arguments import argument_rules
from specdecode_api.v1alpha1.runtimes import RuntimeName
from specdecode_api.v1alpha1.scalars import (
    ByteSize,
    Duration,
    Fraction,
    FreeObject,
    Image,
    Int,
    within,
)


class KvCacheSpec(ResourceRecord):
    """Size and data type of the KV cache; its page size is spec.pageSize."""

    size: ByteSize | None = Field(
        default=None,
        description="Memory of each rank for the KV cache, such as 8Gi; memoryFraction decides "
        "where absent.",
    )
    memory_fraction: Fraction | None = Field(
        default=None,
        description="Fraction of the memory that is free after loading the weights, such as '0.9'; "
        "the engine's default, 0.85, where absent.",
    )
    dtype: Literal["auto", "fp8_e4m3"] = Field(
        default="auto",
        description="Data type of keys and values; auto is that of the weights. fp8_e4m3 takes "
        "half the memory of bfloat16 and is less precise, so that outputs differ from auto.",
    )
    prefix_caching: bool = Field(
        default=True,
        strict=True,
        description="Keep the KV pages of finished requests for requests with the same prefix.",
    )

    rules: ClassVar[tuple["Rule[KvCacheSpec]", ...]] = (
        Rule(
            cel="!has(self.size) || !has(self.memoryFraction)",
            holds=lambda it: it.size is None or it.memory_fraction is None,
            message="size and memoryFraction both give the size of the KV cache: remove one of "
            "them",
            field="memoryFraction",
            reason="FieldValueForbidden",
        ),
    )


class SchedulerSpec(ResourceRecord):
    """Limits on running and queued requests, and the size of prefill chunks."""

    max_running_requests: Int = Field(
        default=64, ge=1, le=4096, description="Maximum number of requests that decode together."
    )
    max_queued_requests: Int = Field(
        default=512,
        ge=0,
        le=1_000_000,
        description="Maximum number of queued requests; a further one is answered with 429.",
    )
    chunked_prefill_tokens: Int = Field(
        default=512,
        ge=16,
        le=65_536,
        description="Prompt tokens that are prefilled per step.",
    )


class GraphsSpec(ResourceRecord):
    """CUDA graphs of decode steps."""

    mode: Literal["Auto", "Cuda", "Static", "Eager"] = Field(
        default="Auto",
        description="Cuda captures CUDA graphs, and the start fails where that fails; Static pads "
        "and copies as graphs need it but captures nothing; Eager disables graphs; Auto is Cuda "
        "on a GPU, runs eagerly what cannot be captured, and is Eager on a CPU and with several "
        "ranks.",
    )
    batch_sizes: list[Annotated[Int, Field(ge=1, le=4096)]] | None = Field(
        default=None,
        max_length=512,
        description="Batch sizes to capture, if the table can reach them; chosen by the engine "
        "where absent, none if empty.",
    )
    memory: ByteSize | None = Field(
        default=None,
        description="Memory budget of each rank for CUDA graphs; what does not fit runs eagerly. "
        "Where absent, a tenth of the memory that is free after loading the weights.",
    )
    capture_timeout: Annotated[Duration, within("0s", "24h")] = Field(
        default="2m",
        description="Time budget for capturing at start; the rest is captured while the engine is "
        "idle.",
    )


Argument = Annotated[str, StringConstraints(min_length=1, max_length=1024)]


class EngineSpec(ResourceRecord):
    """One engine: image, device, memory and limits."""

    runtime: RuntimeName = Field(
        default="Specdecode",
        description="The engine that serves the model: Specdecode is this project's, VLLM is vLLM. "
        "A change replaces the pods. Fields that vLLM has no counterpart of are refused with VLLM.",
    )
    extra_args: list[Argument] = Field(
        default=[],
        max_length=64,
        description="More arguments of the command line, such as --trust-remote-code; runtime VLLM "
        "only. Arguments with a field of their own are refused with its name.",
    )
    image: Image | None = Field(
        default=None,
        description="Engine image; the operator's default for the runtime where absent.",
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        default="IfNotPresent", description="When to pull the image."
    )
    upgrade_policy: Literal["Pinned", "Roll"] | None = Field(
        default=None,
        json_schema_extra=HOT,
        description="What a new default image of the operator does where image is absent: Pinned "
        "keeps the image of the configuration in force, Roll replaces the pods; the operator's "
        "setting where absent.",
    )
    device: Literal["GPU", "CPU"] = Field(default="GPU", description="Device of the engine.")
    threads: Int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Threads of each rank on a CPU; its share of the CPU limit, else the engine's "
        "choice where absent.",
    )
    kv_cache: KvCacheSpec = Field(default=KvCacheSpec(), description="The KV cache.")
    scheduler: SchedulerSpec = Field(default=SchedulerSpec(), description="Limits on requests.")
    attention_backend: Literal["Auto", "Torch", "Triton", "FlashInfer"] = Field(
        default="Auto",
        description="Backend of attention and of writes to the KV cache; Auto is FlashInfer and "
        "Triton, by forward, on a GPU that supports it, C kernels on a CPU, else Torch. A backend "
        "that cannot run is an error at start.",
    )
    graphs: GraphsSpec = Field(default=GraphsSpec(), description="CUDA graphs.")
    overlap: bool | None = Field(
        default=None,
        strict=True,
        description="Launch a step before the results of the previous step are processed; enabled "
        "on a GPU where absent.",
    )
    config: FreeObject = Field(
        default={},
        description="Merge patch (RFC 7386) of the engine's boot file, for settings without a "
        "field of their own, such as cpu_affinity: 0-3; names and bounds are those of the boot "
        "file. Settings with a field of their own are refused with its name.",
    )

    rules: ClassVar[tuple["Rule[EngineSpec]", ...]] = argument_rules()
