"""The command line: a boot file, flags as SGLang's users know them, or both, flags winning."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from specdecode_api.boot import EngineBoot
from specdecode_api.problems import problems
from specdecode_api.speculation import AVAILABLE_ALGORITHMS, Algorithm
from specdecode_engine.depth_flags import choose_policy, choose_start


class BadBoot(Exception):
    """The boot file or the flags are wrong; the message lists every mistake with its place."""


_ALGORITHMS = ", ".join(name for name in Algorithm if name in AVAILABLE_ALGORITHMS)

# flag, place in the boot file, type, help
_FLAGS: tuple[tuple[str, str, type, str], ...] = (
    ("--model-path", "model.path", str, "checkpoint folder of the target"),
    ("--served-model-name", "model.served_name", str, "name of the model in the API"),
    ("--dtype", "model.dtype", str, "auto, bfloat16, float16, float32 or float64"),
    ("--context-length", "model.context_length", int, "longest prompt plus answer, in tokens"),
    ("--speculative-algorithm", "speculation.algorithm", str, _ALGORITHMS),
    ("--speculative-draft-model-path", "speculation.draft_path", str, "checkpoint of the draft"),
    ("--speculative-num-steps", "speculation.num_steps", int, "draft steps in a round"),
    ("--speculative-eagle-topk", "speculation.topk", int, "children of a draft tree's node"),
    ("--speculative-num-draft-tokens", "speculation.num_draft_tokens", int, "verified nodes"),
    (
        "--speculative-adaptive-config",
        "speculation.table_path",
        str,
        "JSON file with the depths by batch size; implies --speculative-adaptive",
    ),
    (
        "--speculative-adaptive-policy",
        "speculation.policy",
        str,
        "ema, goodput or static: who decides on the depth",
    ),
    ("--page-size", "memory.page_size", int, "tokens in a page, a power of two"),
    ("--mem-fraction-static", "memory.kv_cache_fraction", float, "part of memory for the cache"),
    ("--kv-cache-bytes", "memory.kv_cache_bytes", int, "size of the cache in bytes"),
    ("--kv-cache-dtype", "memory.kv_cache_dtype", str, "auto, or fp8_e4m3 for half the memory"),
    ("--max-running-requests", "scheduling.max_running_requests", int, "requests at once"),
    ("--max-queued-requests", "scheduling.max_queued_requests", int, "requests that may wait"),
    ("--chunked-prefill-size", "scheduling.chunked_prefill_tokens", int, "prompt tokens a step"),
    ("--host", "server.host", str, "address to listen on"),
    ("--port", "server.port", int, "port to listen on"),
    ("--drain-seconds", "server.drain_seconds", float, "longest wait for requests at the end"),
    ("--api-key-file", "server.api_key_path", str, "file with keys that clients must show"),
    ("--device", "device", str, "auto, cpu or cuda"),
    (
        "--attention-backend",
        "attention_backend",
        str,
        "auto, torch, triton or flashinfer: who computes attention",
    ),
    ("--threads", "threads", int, "processor threads that compute"),
    ("--cpu-affinity", "cpu_affinity", str, "processors that these keep to, as in 0-3,8"),
)


def parse_flags(arguments: Sequence[str] | None = None) -> EngineBoot:
    """Read the command line and the boot file it names.

    Raises:
        BadBoot: with every mistake.
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
    mistakes = _complete_speculation(document, options)
    try:
        boot = EngineBoot.model_validate(document)
    except ValidationError as error:
        raise BadBoot("\n".join([*mistakes, *problems(error, EngineBoot)])) from None
    if mistakes:
        raise BadBoot("\n".join(mistakes))
    return boot


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="specdecode-engine",
        description="Serve a model with speculative decoding over an OpenAI-compatible API.",
    )
    parser.add_argument("--boot", type=Path, help="boot file (JSON); flags override it")
    for flag, place, kind, text in _FLAGS:
        parser.add_argument(flag, type=kind, help=f"{text} (boot file: {place})")
    parser.add_argument(
        "--speculative-adaptive",
        action="store_const",
        const=True,
        help="change the depth while running (boot file: speculation.policy, goodput by default)",
    )
    parser.add_argument(
        "--disable-overlap-schedule",
        action="store_const",
        const=False,
        help="look at each step's results before the next (boot file: scheduling.overlap)",
    )
    parser.add_argument(
        "--disable-radix-cache",
        action="store_const",
        const=False,
        help="compute every prompt in full (boot file: memory.prefix_cache)",
    )
    parser.add_argument(
        "--cuda-graph-bs",
        type=int,
        nargs="*",
        help="batch sizes to capture (boot file: graphs.batch_sizes)",
    )
    parser.add_argument(
        "--disable-cuda-graph",
        action="store_const",
        const=False,
        help="run every pass as it stands (boot file: graphs.mode)",
    )
    return parser


def _read(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadBoot(f"boot file {path} cannot be read: {error}") from None
    if not isinstance(document, dict):
        raise BadBoot(f"boot file {path} holds no JSON object")
    return document


def _put(document: dict[str, Any], place: str, value: object) -> None:
    *folders, name = place.split(".")
    for folder in folders:
        document = document.setdefault(folder, {})
    document[name] = value


def _complete_speculation(document: dict[str, Any], options: Mapping[str, Any]) -> tuple[str, ...]:
    """Fill in policy and depth at start; return what is wrong with the table's file."""
    config, flag = options["speculative_adaptive_config"], options["speculative_adaptive_policy"]
    is_adaptive = bool(options["speculative_adaptive"] or config)
    speculation = document.setdefault("speculation", {})
    if not isinstance(speculation, dict):
        return ()
    if config is not None:
        speculation.pop("table", None)
    policy = choose_policy(speculation, is_adaptive, flag)
    if policy is not None:
        speculation["policy"] = policy
    num_steps, mistakes = choose_start(speculation)
    if num_steps is not None:
        speculation["num_steps"] = num_steps
    return mistakes
