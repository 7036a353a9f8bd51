"""The command line: a boot file, flags, or both; flags take precedence.

Flags of vLLM and SGLang that are not also the engine's are read by `peers`.
"""

import argparse
import logging
import re
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError

from specdecode_api.boot import EngineBoot
from specdecode_api.command_line import ArgumentParser
from specdecode_api.key_mask import without_key
from specdecode_api.speculation import Algorithm
from specdecode_api.validation_errors import validation_errors
from specdecode_engine.cli.adaptive_flags import ResolvedTable, resolve_table
from specdecode_engine.cli.json_file import read_json
from specdecode_engine.cli.management_flags import management_defaults
from specdecode_engine.cli.peers.reader import read_peer_flags_of, unite
from specdecode_engine.process import ConfigurationError

log = logging.getLogger(__name__)

ALGORITHM = "speculation.algorithm"

# flag, field of the boot file, type
_FLAGS: tuple[tuple[str, str, type], ...] = (
    ("--model-path", "model.path", str),
    ("--served-model-name", "model.served_name", str),
    ("--dtype", "model.dtype", str),
    ("--quantization", "model.quantization", str),
    ("--sum-order", "model.sum_order", str),
    ("--model-impl", "model.implementation", str),
    ("--context-length", "model.context_length", int),
    ("--speculative-algorithm", ALGORITHM, str),
    ("--speculative-draft-model-path", "speculation.draft_path", str),
    ("--speculative-num-steps", "speculation.num_steps", int),
    ("--speculative-eagle-topk", "speculation.topk", int),
    ("--speculative-num-draft-tokens", "speculation.num_draft_tokens", int),
    ("--speculative-fallback", "speculation.fallback", str),
    ("--speculative-ngram-source", "speculation.ngram.source", str),
    ("--speculative-ngram-scope", "speculation.ngram.scope", str),
    ("--speculative-ngram-max-trie-depth", "speculation.ngram.max_depth", int),
    ("--speculative-ngram-min-match", "speculation.ngram.min_match", int),
    ("--speculative-ngram-min-bfs-breadth", "speculation.ngram.min_breadth", int),
    ("--speculative-ngram-max-bfs-breadth", "speculation.ngram.max_breadth", int),
    ("--speculative-ngram-match-type", "speculation.ngram.match", str),
    ("--speculative-ngram-capacity", "speculation.ngram.capacity", int),
    ("--speculative-ngram-min-token-prob", "speculation.ngram.min_token_probability", float),
    ("--speculative-ngram-max-spec-factor", "speculation.ngram.max_spec_factor", float),
    ("--speculative-adaptive-config", "speculation.table_path", str),
    ("--speculative-adaptive-policy", "speculation.policy", str),
    ("--speculative-adaptive-objective", "speculation.objective", str),
    ("--speculative-adaptive-max-inter-token-ms", "speculation.max_inter_token_ms", float),
    ("--page-size", "memory.page_size", int),
    ("--kv-cache-fraction", "memory.kv_cache_fraction", float),
    ("--kv-cache-bytes", "memory.kv_cache_bytes", int),
    ("--max-total-tokens", "memory.max_total_tokens", int),
    ("--kv-cache-dtype", "memory.kv_cache_dtype", str),
    ("--max-running-requests", "scheduling.max_running_requests", int),
    ("--max-queued-requests", "scheduling.max_queued_requests", int),
    ("--chunked-prefill-size", "scheduling.chunked_prefill_tokens", int),
    ("--prefill-delay-steps", "scheduling.prefill_delay_steps", float),
    ("--host", "server.host", str),
    ("--port", "server.port", int),
    ("--management-port", "server.management_port", int),
    ("--management-host", "server.management_host", str),
    ("--drain-socket", "server.drain_socket", str),
    ("--drain-seconds", "server.drain_seconds", float),
    ("--max-body-bytes", "server.max_body_bytes", int),
    ("--response-store-bytes", "server.response_store_bytes", int),
    ("--request-headers-timeout", "server.request_headers_timeout_seconds", float),
    ("--request-body-timeout", "server.request_body_timeout_seconds", float),
    ("--watchdog-timeout", "server.step_timeout_seconds", float),
    ("--engine-process", "server.engine_process", str),
    ("--api-key-file", "server.api_key_path", str),
    ("--router-token-file", "server.router_token_path", str),
    ("--tool-call-parser", "server.tool_parser", str),
    ("--reasoning-parser", "server.reasoning_parser", str),
    ("--otlp-traces-endpoint", "server.tracing_endpoint", str),
    ("--tensor-parallel-size", "parallelism.tensor", int),
    ("--max-lora-rank", "adapters.max_rank", int),
    ("--lora-root", "adapters.root", str),
    ("--max-loras", "adapters.max_loaded", int),
    ("--device", "device", str),
    ("--attention-backend", "attention_backend", str),
    ("--threads", "threads", int),
    ("--cpu-affinity", "cpu_affinity", str),
)

_ALGORITHM_ALIASES = {"NEXTN": Algorithm.MTP}
"""Names of SGLang."""

# flag, field of the boot file, its value with the flag, help
_SWITCHES: tuple[tuple[str, str, object, str], ...] = (
    ("--disable-overlap-schedule", "scheduling.overlap", False,
     "Process the results of a step before the next step is launched"),
    ("--disable-radix-cache", "memory.prefix_cache", False,
     "Disable the prefix cache and prefill every prompt in full"),
    ("--disable-cuda-graph", "graphs.mode", "off",
     "Disable CUDA graphs and run every forward pass eagerly"),
    ("--enable-prompt-tokens-details", "server.prompt_tokens_details", True,
     "Report in usage how many prompt tokens were read from the prefix cache"),
    ("--priority", "scheduling.priority", True,
     "Start waiting requests by their field priority, lower ones earlier"),
    ("--page", "server.page", True,
     "Serve a page with a chat at /; on by default where --host is a loopback address"),
    ("--metrics-on-api-port", "server.metrics_on_api_port", True,
     "Serve /metrics and /server_info on the port of the API too"),
    ("--enable-return-routed-experts", "model.return_routed_experts", True,
     "Keep the experts of every cached token for requests with return_routed_experts"),
)  # fmt: skip

OWN_FLAGS = {field: flag for flag, field, _ in _FLAGS}
"""Flags by the fields that they set to their value."""

_USAGE = """specdecode-engine [serve] --model-path MODEL [FLAG ...]
       specdecode-engine serve MODEL [FLAG ...]
       specdecode-engine [serve] --boot FILE [FLAG ...]
       specdecode-engine {chat,check,kernels,drain,undrain,fetch} ..."""

_LIST_OF_COMMANDS = """MODEL is a folder, or ORG/NAME or hf://ORG/NAME@REVISION of the Hub.

commands (COMMAND --help describes each):
  serve MODEL            download a model of the Hub where it is missing, and serve it
  chat [URL|MODEL]       chat in the terminal with a server, or with a model that it serves
  check MODEL [DRAFT]    report whether they can be served, and in what memory
  kernels --list MODEL   list the Triton kernels that a GPU would compile
  drain, undrain         report a running engine as not ready, or as ready again
  fetch                  download models from the Hugging Face Hub"""


class _HelpFormatter(argparse.HelpFormatter):
    """Wraps the help of flags, and keeps the lines of the list of commands."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text == _LIST_OF_COMMANDS else super()._fill_text(text, width, indent)


def parse_flags(
    arguments: Sequence[str] | None = None, *, log_warnings: bool = False
) -> EngineBoot:
    """Read the command line, the boot file and the speculation table's file, each once.

    The table is then in `speculation.table`, and `speculation.table_path` is None.

    Args:
        log_warnings: log warnings about the table and what became of flags of vLLM and SGLang.

    Raises:
        ConfigurationError: lists every error.
        SystemExit: for --help and unknown flags.
    """
    parser = _parser()
    words = sys.argv[1:] if arguments is None else arguments
    peers = read_peer_flags_of(words, parser.flags)
    options = vars(parser.parse_args(peers.words))
    boot_file = options.pop("boot", None)
    document = _read(boot_file)
    is_adaptive = options.pop("is_adaptive", False)
    mistakes = [*peers.mistakes, *unite(options, peers, OWN_FLAGS)]
    options |= management_defaults(document, options)
    for place, value in options.items():
        is_alias = place == ALGORITHM and value in _ALGORITHM_ALIASES
        _put(document, place, _ALGORITHM_ALIASES[value] if is_alias else value)
    resolved = _resolve_speculation(document, options, is_adaptive)
    mistakes += resolved.mistakes
    try:
        boot = EngineBoot.model_validate(document)
    except ValidationError as error:
        errors = validation_errors(error, EngineBoot)
        given = OWN_FLAGS | {place: setting.flag for place, setting in peers.settings.items()}
        named = (_name_flags(each, given) for each in errors) if boot_file is None else errors
        raise ConfigurationError("\n".join([*mistakes, *named])) from None
    if mistakes:
        raise ConfigurationError("\n".join(mistakes))
    if log_warnings:
        for note in peers.notes:
            log.info("%s", note)
        for warning in resolved.warnings:
            log.warning("speculation table: %s", warning)
    if resolved.table is None:
        return boot
    speculation = boot.speculation.with_table(resolved.table.entries)
    refusal = speculation.verify_tokens_error(speculation.table)
    if refusal is not None:
        raise ConfigurationError(f"speculation table: {refusal}")
    return boot.model_copy(update={"speculation": speculation})


def _name_flags(error: str, flags: Mapping[str, str]) -> str:
    """Name flags in an error of the boot file instead of the fields that they set.

    Field names without a section or an underscore are also words of a sentence and stay.
    """
    place, _, message = error.partition(": ")
    if place == "model":
        return "there is no model: add --model-path FOLDER, or --boot FILE"
    for field, flag in flags.items():
        section, _, name = field.rpartition(".")
        if field == place:
            place = flag
        if section:
            message = re.sub(rf"\b{re.escape(field)}\b", flag, message)
        if section == place and "_" in name:
            message = re.sub(rf"\b{name}\b", flag, message)
    return f"{place}: {message}"


def _parser() -> ArgumentParser:
    """Return a parser whose result has only the given flags, by their field of the boot file."""
    parser = ArgumentParser(
        prog="specdecode-engine",
        usage=_USAGE,
        description="Serve a model with speculative decoding over an OpenAI-compatible API.",
        epilog=_LIST_OF_COMMANDS,
        formatter_class=_HelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"specdecode-engine {version('specdecode-engine')}",
        help="Print the version.",
    )
    parser.add_argument("--boot", type=Path, help="Boot file (JSON); flags override its fields.")
    for flag, place, kind in _FLAGS:
        metavar = flag.removeprefix("--").replace("-", "_").upper()
        parser.add_argument(flag, dest=place, type=kind, metavar=metavar, help=_help(place))
    parser.add_argument(
        "--speculative-adaptive",
        dest="is_adaptive",
        action="store_true",
        help="Adapt the draft steps at run time; the policy is goodput unless the table names ema. "
        "--speculative-adaptive-config implies it (boot file: speculation.policy).",
    )
    for flag, place, value, text in _SWITCHES:
        help_text = f"{text} (boot file: {place})."
        parser.add_argument(flag, dest=place, action="store_const", const=value, help=help_text)
    parser.add_argument(
        "--api-key",
        nargs="+",
        metavar="KEY",
        help="Keys that clients must send one of, next to those of --api-key-file; also read from "
        "the environment variable SPECDECODE_API_KEY, one per line, which other users cannot see.",
    )
    place = "graphs.batch_sizes"
    parser.add_argument(
        "--cuda-graph-bs", dest=place, type=int, nargs="*", metavar="SIZE", help=_help(place)
    )
    parser.add_argument(
        "--lora-modules",
        dest="adapters.modules",
        nargs="+",
        metavar="NAME=PATH",
        help=_help("adapters.modules"),
    )
    place = "server.cors_origins"
    parser.add_argument("--cors-origins", dest=place, nargs="*", metavar="URL", help=_help(place))
    return parser


def _help(place: str) -> str:
    """Describe a flag by the description and the values of its field."""
    kind: Any = EngineBoot
    for name in place.split("."):
        field = kind.model_fields[name]
        kind = field.annotation
    text = str(field.description).removesuffix(".").replace("%", "%%")
    values = get_args(kind) if get_origin(kind) is Literal else ()
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        values = tuple(kind)
    choices = f"one of {', '.join(values)}; " if values else ""
    return f"{text} ({choices}boot file: {place})."


def _read(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    name = without_key(str(path))
    try:
        document = read_json(path)
    except OSError as error:
        reason = f"cannot be read: {error.strerror}; correct --boot"
        raise ConfigurationError(f"boot file {name} {reason}") from None
    except ValueError as error:
        raise ConfigurationError(f"boot file {name} {error}; correct the file") from None
    if not isinstance(document, dict):
        reason = 'does not contain a JSON object; write one, such as {"model": {"path": "/model"}}'
        raise ConfigurationError(f"boot file {name} {reason}")
    return document


def _put(document: dict[str, Any], place: str, value: object) -> None:
    *folders, name = place.split(".")
    for folder in folders:
        document = document.setdefault(folder, {})
    document[name] = value


def _resolve_speculation(
    document: dict[str, Any], options: Mapping[str, Any], is_adaptive: bool
) -> ResolvedTable:
    """Fill in policy and draft steps at start where the table determines them."""
    speculation = document.setdefault("speculation", {})
    if not isinstance(speculation, dict):
        return ResolvedTable()
    if "speculation.table_path" in options:
        speculation.pop("table", None)
        is_adaptive = True
    resolved = resolve_table(speculation, is_adaptive, options.get("speculation.policy"))
    if resolved.policy is not None:
        speculation["policy"] = resolved.policy
    if resolved.num_steps is not None:
        speculation["num_steps"] = resolved.num_steps
    return resolved
