"""How values of vLLM's and SGLang's flags are read, by the name of the conversion in their row."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args
from urllib.parse import urlsplit

from specdecode_api.boot import Quantization
from specdecode_api.speculation import Algorithm, NgramSource

Settings = Mapping[str, object]
"""Values by field of the boot file."""

Conversion = Callable[[str, Sequence[str]], Settings]
"""From the field of a row and the words after the flag; ValueError contains the remedy."""

STORED_QUANTIZATION = "stored quantization"
"""Pseudo-field: the format that the checkpoint must have, since `auto` then computes the same."""
MODELOPT = "modelopt"

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)")
_FACTORS = {"": 1} | {
    letter: factor
    for power, pair in enumerate(("kK", "mM", "gG", "tT"), start=1)
    for letter, factor in zip(pair, (1000**power, 1024**power), strict=True)
}
_ADAPTER_KEYS = frozenset(
    (
        *("name", "path", "base_model_name", "is_3d_lora_weight"),  # of vLLM
        *("lora_id", "lora_name", "lora_path", "pinned"),  # of SGLang
    )
)
_SHOWN_CHARS = 200
_GRPC_PORT, _HTTP_PORT = 4317, 4318


def read_integer(text: str) -> int:
    """Read a whole number.

    Raises:
        ValueError: with the remedy.
    """
    if not re.fullmatch(r"[+-]?\d{1,18}", text.strip()):
        raise ValueError("write a whole number")
    return int(text)


def read_number(text: str) -> float:
    """Read a number.

    Raises:
        ValueError: with the remedy.
    """
    try:
        return float(text)
    except ValueError:
        raise ValueError("write a number") from None


def read_size(text: str) -> int:
    """Read a number as vLLM does: 1k is 1000, 1K is 1024, and 25.6k is 25600.

    Raises:
        ValueError: with the remedy.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError("write a number, such as 32768, 32k (32000) or 32K (32768)")
    number, suffix = found.groups()
    if "." in number and not suffix.islower():
        raise ValueError(f"write it without a decimal point, or with {suffix.lower() or 'k'}")
    return (
        int(float(number) * _FACTORS[suffix]) if "." in number else int(number) * _FACTORS[suffix]
    )


def _one_of(values: Mapping[str, object]) -> Conversion:
    """Read one of some values, in any case."""

    def convert(field: str, words: Sequence[str]) -> Settings:
        name = words[0].lower()
        if name not in values:
            raise ValueError(f"use one of {', '.join(values)}, or remove the flag")
        return {field: values[name]}

    return convert


def _renamed(names: Mapping[str, str]) -> Conversion:
    """Replace some names; the boot file checks the others."""
    return lambda field, words: {field: names.get(words[0], words[0])}


def _each(read: Callable[[str], object]) -> Conversion:
    return lambda field, words: {field: read(words[0])}


def _context_length(field: str, words: Sequence[str]) -> Settings:
    is_automatic = words[0].strip().lower() in {"auto", "-1"}
    return {field: None if is_automatic else read_size(words[0])}


def _chunk(field: str, words: Sequence[str]) -> Settings:
    tokens = read_integer(words[0])
    if tokens < 0:
        raise ValueError("prompts are always prefilled in chunks: give the tokens of a chunk")
    return {field: tokens}


def _one_name(field: str, words: Sequence[str]) -> Settings:
    if len(words) > 1:
        raise ValueError("a model has one name here: give the first alone")
    return {field: words[0]}


def _quantization(field: str, words: Sequence[str]) -> Settings:
    name = words[0].lower()
    if name in get_args(Quantization):
        return {field: name}
    return {field: "auto", STORED_QUANTIZATION: stored_method(name)}


def stored_method(name: str) -> str:
    """Return the method of a checkpoint that a name of one of its kernels or layouts belongs to."""
    method = name.lower().replace("_", "-").removesuffix("-marlin")
    return MODELOPT if method.startswith(MODELOPT) else method


def _json_strings(field: str, words: Sequence[str]) -> Settings:
    try:
        found = json.loads(words[0])
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ValueError('write a JSON list of strings, such as ["https://chat.example.com"]')
    return {field: found}


def _adapter(text: str) -> tuple[str, str]:
    """Read name and path: NAME=PATH, or a JSON object with the keys of vLLM or SGLang."""
    name, separator, path = text.partition("=")
    if text.lstrip().startswith("{"):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = {}
        _refuse_unknown(found)
        name, path = (found.get(key, found.get(f"lora_{key}", "")) for key in ("name", "path"))
    elif not separator:
        name = path = ""
    if not (isinstance(name, str) and isinstance(path, str) and name and path):
        raise ValueError('write NAME=PATH, or {"name": "NAME", "path": "PATH"}')
    return name, path


def _refuse_unknown(adapter: Mapping[str, object]) -> None:
    unknown = sorted(key for key in adapter.keys() - _ADAPTER_KEYS if adapter[key] is not None)
    if unknown:
        raise ValueError(
            f"{unknown[0][:_SHOWN_CHARS]!r} is not a key of an adapter: use name and path"
        )


def _adapters(field: str, words: Sequence[str]) -> Settings:
    found = dict[str, str]()
    for name, path in map(_adapter, words):
        if name in found:
            raise ValueError("two adapters have one name; rename one")
        found[name] = path
    return {field: found}


def _tracing_endpoint(field: str, words: Sequence[str]) -> Settings:
    url = words[0].rstrip("/").removesuffix("/v1/traces")
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"write a URL of OTLP over HTTP, such as http://127.0.0.1:{_HTTP_PORT}")
    try:
        port = urlsplit(url).port
    except ValueError:
        raise ValueError("the port is not a number up to 65535: correct it") from None
    if port == _GRPC_PORT:
        raise ValueError(
            f"{_GRPC_PORT} is the port of OTLP over gRPC: use that of HTTP, {_HTTP_PORT}"
        )
    return {field: url}


def _method(field: str, words: Sequence[str]) -> Settings:
    """Read vLLM's name of a speculative method."""
    name = words[0]
    if name in _METHODS:
        return {field: _METHODS[name]}
    if name in _NGRAM_METHODS:
        return {field: Algorithm.NGRAM.value, "speculation.ngram.source": _NGRAM_METHODS[name]}
    if name.endswith("_mtp"):
        return {field: Algorithm.MTP.value}
    known = ", ".join([*_METHODS, *_NGRAM_METHODS])
    raise ValueError(f"use one of {known}, or remove it and use --speculative-algorithm")


_METHODS = {
    "draft_model": Algorithm.STANDALONE.value,
    "eagle": Algorithm.EAGLE.value,
    "eagle3": Algorithm.EAGLE3.value,
    "mtp": Algorithm.MTP.value,
    "dflash": Algorithm.DFLASH.value,
    "dspark": Algorithm.DSPARK.value,
}
_NGRAM_METHODS = {
    "ngram": NgramSource.PROMPT.value,
    "ngram_gpu": NgramSource.PROMPT.value,
    "suffix": NgramSource.SUFFIX.value,
}

CONVERSIONS: Mapping[str, Conversion] = {
    "text": _each(str),
    "integer": _each(read_integer),
    "number": _each(read_number),
    "size": _each(read_size),
    "integers": lambda field, words: {field: [read_integer(word) for word in words]},
    "context_length": _context_length,
    "chunk": _chunk,
    "one_name": _one_name,
    "boolean": lambda field, words: {field: words[0] == "true"},
    "eager": lambda field, words: {field: "off"} if words[0] == "true" else {},
    "graph_backend": _one_of({"disabled": "off"}),
    "dtype": _renamed({"half": "float16", "float": "float32"}),
    "quantization": _quantization,
    "model_impl": _one_of(
        {
            "auto": "auto",
            "native": "native",
            "vllm": "native",
            "sglang": "native",
            "transformers": "transformers",
        }
    ),
    "kv_cache_dtype": _one_of({"auto": "auto", "fp8_e4m3": "fp8_e4m3", "fp8": "fp8_e4m3"}),
    "attention_backend": _one_of(
        {
            "auto": "auto",
            "flashinfer": "flashinfer",
            "triton": "triton",
            "triton_attn": "triton",
            "torch": "torch",
            "torch_native": "torch",
        }
    ),
    "adapters": _adapters,
    "json_strings": _json_strings,
    "tracing_endpoint": _tracing_endpoint,
    "tool_parser": _renamed(
        {
            "apertus2509": "apertus",
            "deepseekv3": "deepseek_v3",
            "deepseekv31": "deepseek_v31",
            "deepseekv32": "deepseek_v32",
            "deepseekv4": "deepseek_v4",
            "ernie45": "hermes",
            "gpt-oss": "openai",
            "granite4": "hermes",
            "hunyuan": "hy_v3",
            "interns1": "internlm",
            "jamba": "hunyuan_a13b",
            "llama3": "llama3_json",
            "minimax-m2": "minimax_m2",
            "qwen": "hermes",
            "qwen25": "hermes",
        }
    ),
    "reasoning_parser": _renamed(
        {
            "": "none",
            "apertus2509": "apertus",
            "deepseek-r1": "deepseek_r1",
            "gpt-oss": "openai_gptoss",
            "granite_thinking_parser": "qwen3",
            "hunyuan": "hy_v3",
            "hy_v4": "hy_v3",
        }
    ),
    "scheduling_policy": _one_of({"fcfs": False, "priority": True}),
    "spec_method": _method,
}
"""By name; `same`, `api_key` and `speculative_config` are read elsewhere."""

CONVERTED_ELSEWHERE: frozenset[str] = frozenset({"same", "api_key", "speculative_config"})


def as_words(value: Any) -> list[str]:
    """Write a value of a JSON document as the words that would follow a flag."""
    if isinstance(value, list):
        return [word for each in value for word in as_words(each)]
    return [value if isinstance(value, str) else json.dumps(value)]
