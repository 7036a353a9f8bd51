"""The field of the resource for each field of the boot file that a flag of vLLM sets."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from specdecode_api.peer_values import CONVERSIONS, read_integer
from specdecode_operator.convert.options import Option


def _same(value: Any) -> Any:
    return value


def _title_of(names: Mapping[str, str]) -> Callable[[Any], Any]:
    return lambda value: names[value]


@dataclass(frozen=True, slots=True)
class ResourceField:
    """A field of the spec, and how a value of the boot file is written there."""

    path: str
    written: Callable[[Any], Any] = _same


BACKENDS: Final = {
    "auto": "Auto",
    "flashinfer": "FlashInfer",
    "triton": "Triton",
    "torch": "Torch",
}

RESOURCE_FIELDS: Final[Mapping[str, ResourceField]] = {
    "attention_backend": ResourceField("engine.attentionBackend", _title_of(BACKENDS)),
    "graphs.mode": ResourceField("engine.graphs.mode", _title_of({"off": "Eager"})),
    "memory.kv_cache_bytes": ResourceField("engine.kvCache.size", str),
    "memory.kv_cache_dtype": ResourceField("engine.kvCache.dtype"),
    "memory.page_size": ResourceField("pageSize"),
    "memory.prefix_cache": ResourceField("engine.kvCache.prefixCaching"),
    "model.context_length": ResourceField("model.contextLength"),
    "model.dtype": ResourceField("model.dtype"),
    "scheduling.chunked_prefill_tokens": ResourceField("engine.scheduler.chunkedPrefillTokens"),
    "scheduling.max_running_requests": ResourceField("engine.scheduler.maxRunningRequests"),
    "scheduling.overlap": ResourceField("engine.overlap"),
    "server.cors_origins": ResourceField("serving.corsOrigins"),
    "server.drain_seconds": ResourceField(
        "lifecycle.drainTimeout", lambda seconds: f"{seconds:.0f}s"
    ),
    "server.reasoning_parser": ResourceField("serving.reasoningParser"),
    "server.tool_parser": ResourceField("serving.toolParser"),
    "server.tracing_endpoint": ResourceField("serving.tracing.endpoint"),
}
"""By field of the boot file. Both runtimes have them."""

ON_SEVERAL_GPUS: Final = {
    "--tensor-parallel-size": "parallelism.tensor",
    "--pipeline-parallel-size": "parallelism.pipeline",
    "--data-parallel-size": "parallelism.data",
}

_NUMBER_FLAGS: Final = frozenset(
    {*ON_SEVERAL_GPUS, "--cudagraph-capture-sizes", "--max-num-queued-reqs"}
)
_NUMBERS: Final = frozenset({"integer", "number", "size", "integers", "context_length"})


def boot_value(option: Option) -> Any:
    """The value that a flag gives to its field of the boot file.

    Raises:
        ValueError: with the remedy.
    """
    assert option.row.field is not None
    assert option.row.conversion is not None
    settings = CONVERSIONS[option.row.conversion](option.row.field, option.words)
    return settings.get(option.row.field)


def is_number(option: Option) -> bool:
    """Whether the value of a flag is a number, so that another one is an error for vLLM too."""
    return option.row.conversion in _NUMBERS or option.flag in _NUMBER_FLAGS


def integer(option: Option) -> int:
    """The value of a flag for a whole number.

    Raises:
        ValueError: with the remedy.
    """
    return read_integer(option.words[0])
