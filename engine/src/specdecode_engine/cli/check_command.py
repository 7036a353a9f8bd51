"""`specdecode-engine check`: whether models can be served, by what, and in what memory."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from specdecode_engine.startup.model_check import ModelCheck, PairCheck

REFUSED = 1
DTYPES = ("auto", "float16", "bfloat16", "float32", "float64")


def check(arguments: Sequence[str]) -> int:
    """Print a report; 0 if the models can be served, 1 if not."""
    options = _parser().parse_args(arguments)
    # Imported here: torch takes seconds.
    import torch

    from specdecode_engine.model.config_file import DTYPES as BY_NAME
    from specdecode_engine.startup.model_check import CheckOptions, check_pair

    is_float8 = options.kv_cache_dtype == "fp8_e4m3"
    types = CheckOptions(
        dtype=BY_NAME.get(options.dtype), kv_dtype=torch.float8_e4m3fn if is_float8 else None
    )
    pair = check_pair(options.model, options.draft, types)
    print(json.dumps(as_json(pair), indent=1) if options.json else as_text(pair))
    if not options.json:
        for reason in pair.reasons:
            print(f"specdecode-engine check: {reason}", file=sys.stderr)
    return 0 if pair.is_served else REFUSED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="specdecode-engine check",
        description="Report whether a target and a draft can be served, by which implementation, "
        "and in what memory. Reads config.json and the headers of safetensors files, where there "
        "are any; no weights and no GPU. Exit status 0: they can be served, 1: they cannot.",
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="Folder of the target.")
    parser.add_argument("draft", type=Path, metavar="DRAFT", nargs="?", help="Folder of the draft.")
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        default="auto",
        help="Type of the weights (default auto: that of the target's checkpoint, which is what a "
        "GPU uses; a CPU uses float32).",
    )
    parser.add_argument(
        "--kv-cache-dtype",
        choices=("auto", "fp8_e4m3"),
        default="auto",
        help="Type of the KV cache (default auto: that of the weights).",
    )
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    return parser


def as_json(pair: "PairCheck") -> dict[str, object]:
    """Return the report; sizes are in bytes."""
    report: dict[str, object] = {
        "served": pair.is_served,
        "algorithm": str(pair.algorithm),
        "reasons": list(pair.reasons),
        "target": _model_json(pair.target),
    }
    if pair.draft is not None:
        report["draft"] = _model_json(pair.draft)
    if pair.is_served:
        report["weight_bytes"] = sum(one.weight_bytes or 0 for one in pair.models)
        report["kv_bytes_per_token"] = sum(one.kv_bytes_per_token or 0 for one in pair.models)
    return report


def _model_json(model: "ModelCheck") -> dict[str, object]:
    return {
        "path": str(model.path),
        "model_type": model.model_type,
        "architecture": model.architecture,
        "implementation": model.implementation,
        "parameters": model.parameters,
        "weight_bytes": model.weight_bytes,
        "dtype": _name(model.dtype),
        "kv_bytes_per_token": model.kv_bytes_per_token,
        "kv_cache_dtype": _name(model.kv_dtype),
        "context_length": model.context_length,
        "has_tensors": model.has_tensors,
        "reason": model.reason,
    }


def as_text(pair: "PairCheck") -> str:
    """Return the report for people; reasons of a refusal are left out."""
    lines = _model_lines("target", pair.target)
    if pair.draft is not None:
        lines += _model_lines(f"draft ({pair.algorithm})", pair.draft)
    return "\n".join([*lines, f"can be served: {'yes' if pair.is_served else 'no'}"])


def _model_lines(role: str, model: "ModelCheck") -> list[str]:
    lines = [
        f"{role}: {model.path}",
        f"  model type      {model.model_type or 'unknown'} ({model.architecture or 'unknown'})",
    ]
    if model.weight_bytes is None or model.kv_bytes_per_token is None:
        return lines
    source = "config.json and headers" if model.has_tensors else "config.json; no tensors found"
    return [
        *lines,
        f"  implementation  {model.implementation}",
        f"  weights         {model.weight_bytes / 2**20:.1f} MiB, {model.parameters} parameters "
        f"in {_name(model.dtype)} ({source})",
        f"  KV cache        {model.kv_bytes_per_token} bytes per token in {_name(model.kv_dtype)}",
        f"  context length  {model.context_length} tokens",
    ]


def _name(dtype: "torch.dtype | None") -> str | None:
    return None if dtype is None else str(dtype).removeprefix("torch.")
