"""The command line: a boot file, flags named as in SGLang, or both; flags take precedence."""

import argparse
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from specdecode_api.boot import EngineBoot
from specdecode_api.speculation import AVAILABLE_ALGORITHMS, Algorithm
from specdecode_api.validation_errors import validation_errors
from specdecode_engine.cli.adaptive_flags import ResolvedTable, resolve_table

log = logging.getLogger(__name__)


class BootError(Exception):
    """The boot file or the flags are invalid; the message lists every error with its field."""


_ALGORITHMS = ", ".join(name for name in Algorithm if name in AVAILABLE_ALGORITHMS)

# flag, field of the boot file, type, help
_FLAGS: tuple[tuple[str, str, type, str], ...] = (
    ("--model-path", "model.path", str, "Folder of the target's checkpoint"),
    ("--served-model-name", "model.served_name", str, "Model name in the API"),
    (
        "--dtype",
        "model.dtype",
        str,
        "Data type of the weights: auto, bfloat16, float16, float32 or float64",
    ),
    ("--context-length", "model.context_length", int, "Maximum prompt plus output, in tokens"),
    ("--speculative-algorithm", "speculation.algorithm", str, _ALGORITHMS),
    (
        "--speculative-draft-model-path",
        "speculation.draft_path",
        str,
        "Folder of the draft's checkpoint",
    ),
    ("--speculative-num-steps", "speculation.num_steps", int, "Draft steps at start"),
    (
        "--speculative-eagle-topk",
        "speculation.topk",
        int,
        "Children per node of the draft tree; 1 drafts a chain",
    ),
    (
        "--speculative-num-draft-tokens",
        "speculation.num_draft_tokens",
        int,
        "Nodes verified per step, root included",
    ),
    (
        "--speculative-adaptive-config",
        "speculation.table_path",
        str,
        "JSON file with the candidate draft steps per batch size; implies --speculative-adaptive",
    ),
    (
        "--speculative-adaptive-policy",
        "speculation.policy",
        str,
        "Policy that chooses the draft steps: ema, goodput or static",
    ),
    ("--page-size", "memory.page_size", int, "Tokens per page of the KV cache; a power of two"),
    (
        "--mem-fraction-static",
        "memory.kv_cache_fraction",
        float,
        "Fraction of the free memory for the KV cache",
    ),
    ("--kv-cache-bytes", "memory.kv_cache_bytes", int, "Size of the KV cache in bytes"),
    (
        "--max-total-tokens",
        "memory.max_total_tokens",
        int,
        "Maximum number of tokens in the KV cache",
    ),
    (
        "--kv-cache-dtype",
        "memory.kv_cache_dtype",
        str,
        "Data type of the KV cache: auto, or fp8_e4m3 (half the memory of bfloat16)",
    ),
    (
        "--max-running-requests",
        "scheduling.max_running_requests",
        int,
        "Maximum number of running requests",
    ),
    (
        "--max-queued-requests",
        "scheduling.max_queued_requests",
        int,
        "Maximum number of queued requests",
    ),
    (
        "--chunked-prefill-size",
        "scheduling.chunked_prefill_tokens",
        int,
        "Prompt tokens prefilled per step",
    ),
    ("--host", "server.host", str, "Address to listen on"),
    ("--port", "server.port", int, "Port to listen on; 0 selects a free port"),
    (
        "--drain-seconds",
        "server.drain_seconds",
        float,
        "Maximum wait for running requests after SIGTERM",
    ),
    ("--api-key-file", "server.api_key_path", str, "File with API keys, one per line"),
    ("--device", "device", str, "Device: auto, cpu or cuda"),
    (
        "--attention-backend",
        "attention_backend",
        str,
        "Attention backend: auto, torch, triton or flashinfer",
    ),
    ("--threads", "threads", int, "Number of compute threads on a CPU"),
    ("--cpu-affinity", "cpu_affinity", str, "CPUs to pin the compute threads to, e.g. 0-3,8"),
)


def parse_flags(
    arguments: Sequence[str] | None = None, *, log_warnings: bool = False
) -> EngineBoot:
    """Read the command line, the boot file and the speculation table's file, each once.

    The table is then in `speculation.table`, and `speculation.table_path` is None.

    Args:
        log_warnings: log warnings about the table.

    Raises:
        BootError: lists every error.
        SystemExit: for --help and unknown flags.
    """
    options = vars(_parser().parse_args(arguments))
    document = _read(options["boot"])
    for flag, place, _, _ in _FLAGS:
        value = options[flag.removeprefix("--").replace("-", "_")]
        if value is not None:
            _put(document, place, value)
    if options["disable_overlap_schedule"] is not None:
        _put(document, "scheduling.overlap", False)
    if options["cuda_graph_bs"] is not None:
        _put(document, "graphs.batch_sizes", options["cuda_graph_bs"])
    if options["disable_cuda_graph"] is not None:
        _put(document, "graphs.mode", "off")
    if options["disable_radix_cache"] is not None:
        _put(document, "memory.prefix_cache", False)
    resolved = _resolve_speculation(document, options)
    try:
        boot = EngineBoot.model_validate(document)
    except ValidationError as error:
        raise BootError(
            "\n".join([*resolved.mistakes, *validation_errors(error, EngineBoot)])
        ) from None
    if resolved.mistakes:
        raise BootError("\n".join(resolved.mistakes))
    if log_warnings:
        for warning in resolved.warnings:
            log.warning("speculation table: %s", warning)
    if resolved.table is None:
        return boot
    speculation = boot.speculation.with_table(resolved.table.entries)
    return boot.model_copy(update={"speculation": speculation})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="specdecode-engine",
        description="Serve a model with speculative decoding over an OpenAI-compatible API.",
    )
    parser.add_argument("--boot", type=Path, help="Boot file (JSON); flags override its fields.")
    for flag, place, kind, text in _FLAGS:
        parser.add_argument(flag, type=kind, help=f"{text} (boot file: {place}).")
    parser.add_argument(
        "--speculative-adaptive",
        action="store_const",
        const=True,
        help="Adapt the draft steps at run time; the policy is goodput unless the table names ema "
        "(boot file: speculation.policy).",
    )
    parser.add_argument(
        "--disable-overlap-schedule",
        action="store_const",
        const=False,
        help="Process the results of a step before the next step is launched "
        "(boot file: scheduling.overlap).",
    )
    parser.add_argument(
        "--disable-radix-cache",
        action="store_const",
        const=False,
        help="Disable the prefix cache and prefill every prompt in full "
        "(boot file: memory.prefix_cache).",
    )
    parser.add_argument(
        "--cuda-graph-bs",
        type=int,
        nargs="*",
        help="Batch sizes to capture CUDA graphs for (boot file: graphs.batch_sizes).",
    )
    parser.add_argument(
        "--disable-cuda-graph",
        action="store_const",
        const=False,
        help="Disable CUDA graphs and run every forward pass eagerly (boot file: graphs.mode).",
    )
    return parser


def _read(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BootError(f"boot file {path} cannot be read: {error}") from None
    if not isinstance(document, dict):
        raise BootError(f"boot file {path} does not contain a JSON object")
    return document


def _put(document: dict[str, Any], place: str, value: object) -> None:
    *folders, name = place.split(".")
    for folder in folders:
        document = document.setdefault(folder, {})
    document[name] = value


def _resolve_speculation(document: dict[str, Any], options: Mapping[str, Any]) -> ResolvedTable:
    """Fill in policy and draft steps at start where the table determines them."""
    config, flag = options["speculative_adaptive_config"], options["speculative_adaptive_policy"]
    speculation = document.setdefault("speculation", {})
    if not isinstance(speculation, dict):
        return ResolvedTable()
    if config is not None:
        speculation.pop("table", None)
    is_adaptive = bool(options["speculative_adaptive"] or config)
    resolved = resolve_table(speculation, is_adaptive, flag)
    if resolved.policy is not None:
        speculation["policy"] = resolved.policy
    if resolved.num_steps is not None:
        speculation["num_steps"] = resolved.num_steps
    return resolved
