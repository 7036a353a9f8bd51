"""The boot file: model, memory, CUDA graphs, scheduling."""

from collections.abc import Iterator
from pathlib import PurePath
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from specdecode_api import names
from specdecode_api.base import FileRecord
from specdecode_api.boot.adapters import AdaptersBoot
from specdecode_api.boot.parallelism import ParallelismBoot
from specdecode_api.boot.server import ServerBoot
from specdecode_api.boot.speculation import CheckpointPath, SpeculationBoot
from specdecode_api.rules import refuse_with
from specdecode_api.speculation import MAX_PAGE_SIZE, Algorithm

CPU_LIST = r"^\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*$"
"""Comma-separated CPU numbers and ranges."""

BOOT_VERSION: Literal[1] = 1

Dtype = Literal["auto", "bfloat16", "float16", "float32", "float64"]

Quantization = Literal["auto", "none", "int8", "int4"]

SumOrderName = Literal["auto", "inputs", "blocks32"]

ModelImplementation = Literal["auto", "native", "transformers"]


class ModelBoot(FileRecord):
    """The target model: path of its checkpoint, and its name in the API."""

    path: CheckpointPath = Field(description="Folder of the checkpoint, in Hugging Face format.")
    served_name: Annotated[str, StringConstraints(min_length=1, max_length=253)] | None = Field(
        default=None, description="Name of the model in the API; the folder's name if null."
    )
    dtype: Dtype = Field(
        default="auto",
        description="Data type of the weights in memory; auto is the checkpoint's own.",
    )
    quantization: Quantization = Field(
        default="auto",
        description="Weights of linear layers and experts, also of a draft: int8 quantizes them to "
        "8 bits with a scale for each output, int4 to 4 bits with a scale for each 32 inputs, and "
        "the head to 8 bits; with auto they have dtype, or stay as a quantized checkpoint stores "
        "them where kernels take these; none dequantizes such a checkpoint. Activations keep their "
        "type.",
    )
    sum_order: SumOrderName = Field(
        default="auto",
        description="Order in which linear maps on a CPU add products: inputs adds one after the "
        "other; blocks32, for rows of bfloat16 alone, adds blocks of 32 inputs as Intel's AMX "
        "does, with the same bits on processors without it. auto is inputs. A change may change "
        "the last bit of texts.",
    )
    implementation: ModelImplementation = Field(
        default="auto",
        description="Code that computes the model: native, or the modules of transformers with the "
        "engine's kernels; auto is native where the architecture is, else transformers.",
    )
    context_length: int | None = Field(
        default=None,
        ge=16,
        le=10_000_000,
        description="Maximum prompt plus output in tokens; the model's own maximum if null.",
    )
    return_routed_experts: bool = Field(
        default=False,
        description="Keep the experts of every cached token, so that requests may ask for them "
        "with return_routed_experts; for mixtures of experts only.",
    )


AttentionBackendName = Literal["auto", "torch", "triton", "flashinfer"]


class MemoryBoot(FileRecord):
    """Page size, size and data type of the KV cache."""

    page_size: int = Field(
        default=16,
        ge=1,
        le=MAX_PAGE_SIZE,
        description="Tokens per page of the KV cache; a power of two.",
    )
    kv_cache_bytes: int | None = Field(
        default=None,
        ge=1,
        description="Size of the KV cache of each rank; a fraction of the free memory if null.",
    )
    kv_cache_fraction: float = Field(
        default=0.85,
        gt=0,
        le=1,
        description="Fraction of the free memory for the KV cache if kv_cache_bytes is null.",
    )
    device_fraction: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Fraction of the device's whole memory for weights, buffers, CUDA graphs and "
        "KV cache, as in vLLM; instead of kv_cache_fraction.",
    )
    static_fraction: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="Fraction of the memory that is free before the weights are loaded, for "
        "weights and KV cache alone, as in SGLang; instead of kv_cache_fraction.",
    )
    max_total_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Most tokens that the key-value cache holds; as many as fit where null.",
    )
    kv_cache_dtype: Literal["auto", "fp8_e4m3"] = Field(
        default="auto",
        description="Data type of keys and values; auto is that of the weights. fp8_e4m3 takes "
        "half the memory of bfloat16 and is less precise, so that outputs differ from auto.",
    )
    prefix_cache: bool = Field(
        default=True,
        description="Keep the KV pages of finished requests for requests with the same prefix.",
    )

    @field_validator("page_size")
    @classmethod
    def _is_power_of_two(cls, page_size: int) -> int:
        if page_size & (page_size - 1):
            raise ValueError("page_size must be a power of two: use 1, 2, 4, … 256")
        return page_size

    @model_validator(mode="after")
    def _has_one_fraction(self) -> "MemoryBoot":
        if self.device_fraction is not None and self.static_fraction is not None:
            raise ValueError("device_fraction and static_fraction both size the cache: remove one")
        return self


GraphMode = Literal["auto", "off", "static", "cuda"]


class GraphsBoot(FileRecord):
    """CUDA graphs of decode steps, or their stand-in without a GPU."""

    mode: GraphMode = Field(
        default="auto",
        description="cuda captures CUDA graphs, and the start fails where that fails; static pads "
        "and copies as graphs need it but captures nothing, to try out a plan; auto is cuda on a "
        "GPU, runs eagerly what cannot be captured, and is off on a CPU and with several ranks.",
    )
    batch_sizes: tuple[Annotated[int, Field(ge=1, le=4096)], ...] | None = Field(
        default=None,
        max_length=512,
        description="Batch sizes to capture, if the table can reach them; chosen by the engine if "
        "null, none if empty.",
    )
    max_bytes: int | None = Field(
        default=None,
        ge=0,
        description="Memory budget of each rank for CUDA graphs; what does not fit runs eagerly. "
        "If null, a tenth of the memory that is free after loading the weights.",
    )
    max_seconds: float = Field(
        default=120.0,
        ge=0,
        le=86_400,
        description="Time budget for capturing at start; the rest is captured while the engine is "
        "idle.",
    )


class SchedulingBoot(FileRecord):
    """Limits on running and queued requests, and the size of prefill chunks."""

    max_running_requests: int = Field(
        default=64, ge=1, le=4096, description="Maximum number of running requests."
    )
    max_queued_requests: int = Field(
        default=512,
        ge=0,
        le=1_000_000,
        description="Maximum number of queued requests; a further one is answered with 429.",
    )
    chunked_prefill_tokens: int = Field(
        default=512,
        ge=1,
        le=1_000_000,
        description="Prompt tokens that are prefilled per step, at most.",
    )
    prefill_delay_steps: float = Field(
        default=1.5,
        ge=0,
        le=1000,
        description="Time that prefilled prompt tokens may add to a step in which requests decode, "
        "in decode steps of the same batch size: fewer are prefilled if they take longer, but at "
        "least 16. 0: no bound.",
    )
    priority: bool = Field(
        default=False,
        description="Start waiting requests by the field priority of their body, lower ones "
        "earlier; each 10 s of waiting count as one class. Whoever may send requests can then "
        "delay those of others. If false, the field is ignored.",
    )
    overlap: bool | None = Field(
        default=None,
        description="Launch a step before the results of the previous step are processed; "
        "null enables this on a GPU.",
    )


class EngineBoot(FileRecord):
    """The whole boot file, version 1."""

    version: Literal[1] = Field(default=BOOT_VERSION, description="Version of this format.")
    config_hash: Annotated[str, StringConstraints(max_length=names.MAX_CONFIG_HASH_LENGTH)] = Field(
        default="",
        description="Name of the configuration in metrics; may be empty. It has no other effect.",
    )
    model: ModelBoot = Field(description="The target model.")
    speculation: SpeculationBoot = Field(
        default=SpeculationBoot(), description="Speculative decoding."
    )
    memory: MemoryBoot = Field(default=MemoryBoot(), description="The KV cache.")
    graphs: GraphsBoot = Field(default=GraphsBoot(), description="CUDA graphs.")
    scheduling: SchedulingBoot = Field(default=SchedulingBoot(), description="Limits on requests.")
    server: ServerBoot = Field(default=ServerBoot(), description="The HTTP server.")
    parallelism: ParallelismBoot = Field(
        default=ParallelismBoot(), description="Ranks of the engine."
    )
    adapters: AdaptersBoot = Field(default=AdaptersBoot(), description="LoRA adapters.")
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="Device of the engine; auto prefers cuda."
    )
    attention_backend: AttentionBackendName = Field(
        default="auto",
        description="Backend of attention and of writes to the KV cache; auto is flashinfer and "
        "triton, by forward, on a GPU "
        "that supports it, cpu (C kernels) on a CPU, else torch. A backend that cannot run is an "
        "error at start.",
    )
    threads: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Threads of computation of each rank on a CPU; chosen by the engine if null.",
    )
    cpu_affinity: Annotated[str, StringConstraints(pattern=CPU_LIST)] | None = Field(
        default=None,
        description="CPUs for the engine's threads, in the format of taskset (0-3,8); all "
        "available CPUs if null. The thread of the HTTP server is not pinned.",
    )

    @property
    def has_engine_process(self) -> bool:
        """Whether the engine runs in a process of its own."""
        return self.server.engine_process == "on" or self.parallelism.tensor > 1

    @property
    def served_name(self) -> str:
        """Name of the model in the API."""
        return self.model.served_name or PurePath(self.model.path).name

    @property
    def adapter_name_error(self) -> str | None:
        """The error of an adapter with the served name; None if there is no such adapter."""
        if self.served_name not in self.adapters.modules:
            return None
        return (
            f"{self.served_name} is the name of the model: choose another for the adapter, or set "
            "model.served_name"
        )

    @model_validator(mode="after")
    def _check_adapters(self) -> "EngineBoot":
        refuse_with(tuple(self._refusals_of_adapters()))
        return self

    def _refusals_of_adapters(self) -> Iterator[tuple[str, str]]:
        modules, root = self.adapters.modules, self.adapters.root
        # Other paths may be names of the Hub, which the engine serves under their whole names.
        has_name = self.model.served_name is not None or PurePath(self.model.path).is_absolute()
        if has_name and (error := self.adapter_name_error) is not None:
            yield "adapters.modules", error
        if (modules or root is not None) and self.parallelism.tensor > 1:
            yield (
                "adapters.modules" if modules else "adapters.root",
                f"adapters are computed by one rank, and parallelism.tensor is "
                f"{self.parallelism.tensor}: use 1, or merge the adapter into the model",
            )

    @model_validator(mode="after")
    def _check_sum_order(self) -> "EngineBoot":
        refuse_with(tuple(self._refusals_of_sum_order()))
        return self

    def _refusals_of_sum_order(self) -> Iterator[tuple[str, str]]:
        if self.model.sum_order != "blocks32":
            return
        if self.device == "cuda":
            yield (
                "model.sum_order",
                "blocks32 is for a CPU, and device is cuda: set device to cpu, or sum_order to "
                "auto",
            )
        elif self.model.dtype not in ("auto", "bfloat16"):
            yield (
                "model.sum_order",
                f"blocks32 is for rows of bfloat16, and model.dtype is {self.model.dtype}: set it "
                "to bfloat16, or sum_order to auto",
            )

    @model_validator(mode="after")
    def _check_ranks(self) -> "EngineBoot":
        refuse_with(tuple(self._refusals_of_ranks()))
        return self

    def _refusals_of_ranks(self) -> Iterator[tuple[str, str]]:
        tensor = self.parallelism.tensor
        if tensor == 1:
            return
        if self.server.engine_process == "off":
            yield (
                "server.engine_process",
                f"off would leave no process for the ranks, and parallelism.tensor is {tensor}: "
                "use auto or on",
            )
        if self.speculation.algorithm is Algorithm.FROZEN_KV_MTP:
            yield (
                "speculation.algorithm",
                "the draft of FROZEN_KV_MTP reads all keys and values of the target, of which "
                f"each rank has a part, and parallelism.tensor is {tensor}: use 1, or another "
                "algorithm",
            )
