"""`specdecode-engine check`: whether models can be served, by what, and in what memory."""

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from specdecode_api.command_line import ArgumentParser
from specdecode_api.model_uri import HUB_URI_PATTERN, HubLocation, parse_uri

if TYPE_CHECKING:
    import torch

    from specdecode_engine.cli.check.adapter_check import AdapterCheck
    from specdecode_engine.serve.openai.stop_tokens import StopTokens
    from specdecode_engine.serve.text.tokenizer_check import TokenizerCheck
    from specdecode_engine.startup.model_check import ModelCheck, PairCheck

REFUSED = 1
FAILED = 2
HUB = "hf://"
QUANTIZATIONS = ("auto", "none", "int8", "int4")
DTYPES = ("auto", "float16", "bfloat16", "float32", "float64")


def check(arguments: Sequence[str]) -> int:
    """Print a report; 0 if the models can be served, 1 if not, 2 if the hub cannot be read."""
    options = _parser().parse_args(arguments)
    # Imported here: torch takes seconds.
    import torch

    from specdecode_engine.cli.check.adapter_check import check_adapters
    from specdecode_engine.cli.check.text_check import check_text
    from specdecode_engine.fetch.hub import FetchError
    from specdecode_engine.model.checkpoint.config_file import DTYPES as BY_NAME
    from specdecode_engine.serve.text.tokenizer_check import check_tokenizers
    from specdecode_engine.startup.model_check import CheckOptions, check_pair

    is_float8 = options.kv_cache_dtype == "fp8_e4m3"
    types = CheckOptions(
        dtype=BY_NAME.get(options.dtype),
        kv_dtype=torch.float8_e4m3fn if is_float8 else None,
        quantization=options.quantization,
        ranks=options.tensor_parallel_size,
    )
    try:
        with _local_folders(options.model, options.draft) as (model, draft):
            assert model is not None
            pair = check_pair(model, draft, types)
            pair, stop_tokens = check_text(pair)
            pair, tokenizer = check_tokenizers(pair)
            has_weights = not options.model.startswith(HUB)
            adapters = check_adapters(options.adapter, model, pair, has_weights=has_weights)
    except FetchError as error:
        print(f"specdecode-engine check: {error}", file=sys.stderr)
        return FAILED
    names = {str(pair.target.path): options.model}
    if pair.draft is not None:
        names[str(pair.draft.path)] = options.draft
    found = (pair, stop_tokens, tokenizer, adapters)
    text = json.dumps(as_json(*found), indent=1) if options.json else as_text(*found)
    print(_with_names(text, names))
    if not options.json:
        refused = [one.reason for one in adapters if one.reason is not None]
        for reason in (*pair.reasons, *refused):
            print(f"specdecode-engine check: {_with_names(reason, names)}", file=sys.stderr)
    return 0 if _is_served(pair, adapters) else REFUSED


def _is_served(pair: "PairCheck", adapters: Sequence["AdapterCheck"]) -> bool:
    """Whether an engine starts with the models and all adapters."""
    return pair.is_served and all(one.reason is None for one in adapters)


def _with_names(text: str, names: Mapping[str, str]) -> str:
    """Put the given names of models where the folders are in which their headers were read."""
    for folder, name in names.items():
        text = text.replace(folder, name)
    return text


def _model(text: str) -> str:
    if text.startswith(HUB) and re.fullmatch(HUB_URI_PATTERN, text) is None:
        raise argparse.ArgumentTypeError(f"{text} is not a model; write hf://ORG/NAME@REVISION")
    return text


@contextmanager
def _local_folders(*models: str | None) -> Iterator[list[Path | None]]:
    """Yield a folder for each model; those of the hub get configs and headers alone."""
    from specdecode_engine.fetch.headers import fetch_headers
    from specdecode_engine.fetch.hub import Hub

    hub = Hub(os.environ.get("HF_ENDPOINT") or None, os.environ.get("HF_TOKEN") or None)
    with TemporaryDirectory(prefix="specdecode-check-") as temporary:
        folders: list[Path | None] = []
        for number, model in enumerate(models):
            location = parse_uri(model) if model is not None and model.startswith(HUB) else None
            if model is None or not isinstance(location, HubLocation):
                folders.append(None if model is None else Path(model))
                continue
            folder = Path(temporary, str(number), location.repository)
            folder.mkdir(parents=True)
            fetch_headers(hub, model, location, folder)
            folders.append(folder)
        yield folders


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="specdecode-engine check",
        description="Report whether a target and a draft can be served, by which implementation, "
        "and in what memory. Reads configs, tokenizer and the headers of safetensors files, where "
        "there are any; no weights and no GPU. Exit status 0: they can be served, 1: they cannot, "
        "2: the hub cannot be read.",
        epilog="HF_TOKEN sets the access token and HF_ENDPOINT a mirror, as in huggingface_hub.",
    )
    parser.add_argument(
        "model", type=_model, metavar="MODEL", help="Folder of the target, or hf://ORG/NAME@REV."
    )
    parser.add_argument(
        "draft", type=_model, metavar="DRAFT", nargs="?", help="The same of the draft."
    )
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        default="auto",
        help="Type of the weights (default auto: that of the target's checkpoint, which is what a "
        "GPU uses; a CPU uses float32).",
    )
    parser.add_argument(
        "--quantization",
        choices=QUANTIZATIONS,
        default="auto",
        help="Form of the weights of linear layers and experts, as the engine's flag of that name "
        "(default auto: the type of the weights, or the form that the checkpoint stores).",
    )
    parser.add_argument(
        "--kv-cache-dtype",
        choices=("auto", "fp8_e4m3"),
        default="auto",
        help="Type of the KV cache (default auto: that of the weights).",
    )
    parser.add_argument(
        "--tensor-parallel-size",
        "--tp-size",
        type=int,
        choices=range(1, 17),
        default=1,
        metavar="N",
        help="Ranks among which the target is divided (default 1); memory is that of one of them.",
    )
    parser.add_argument(
        "--adapter",
        action="append",
        default=[],
        type=Path,
        metavar="FOLDER",
        help="Folder of a LoRA adapter of the target, as peft saves it; may be repeated. The "
        "adapter is read whole.",
    )
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    return parser


def as_json(
    pair: "PairCheck",
    stop_tokens: "StopTokens",
    tokenizer: "TokenizerCheck | None" = None,
    adapters: Sequence["AdapterCheck"] = (),
) -> dict[str, object]:
    """Return the report; sizes are bytes of one rank."""
    report: dict[str, object] = {
        "served": _is_served(pair, adapters),
        "algorithm": str(pair.algorithm),
        "tensor_parallel_size": pair.target.ranks,
        "reasons": list(pair.reasons),
        "target": _model_json(pair.target),
        "stop_tokens": stop_tokens.document(),
    }
    if tokenizer is not None:
        report["tokenizer"] = {
            "transformers_class": tokenizer.transformers_class,
            "difference": tokenizer.difference,
        }
    if pair.draft is not None:
        report["draft"] = _model_json(pair.draft)
    if pair.mtp is not None:
        report["mtp"] = _model_json(pair.mtp)
    if adapters:
        report["adapters"] = [one.document() for one in adapters]
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
        "quantization": model.quantization,
        "keeps_quantized": model.keeps_quantized,
        "dtype": _name(model.dtype),
        "kv_bytes_per_token": model.kv_bytes_per_token,
        "kv_cache_dtype": _name(model.kv_dtype),
        "state_bytes_per_request": model.state_bytes_per_request,
        "routed_experts_bytes_per_token": model.routed_bytes_per_token,
        "context_length": model.context_length,
        "has_tensors": model.has_tensors,
        "reason": model.reason,
        "warning": model.warning,
    }


def as_text(
    pair: "PairCheck",
    stop_tokens: "StopTokens",
    tokenizer: "TokenizerCheck | None" = None,
    adapters: Sequence["AdapterCheck"] = (),
) -> str:
    """Return the report for people; reasons of a refusal are left out."""
    lines = _model_lines("target", pair.target)
    lines += [f"  stop token      {line}" for line in stop_tokens.lines()]
    if tokenizer is not None:
        name, found = tokenizer.transformers_class, tokenizer.difference or "all texts alike"
        lines.append(f"  tokenizer       tokenizer.json; {name} of transformers encodes {found}")
    if pair.draft is not None:
        lines += _model_lines(f"draft ({pair.algorithm})", pair.draft)
    if pair.mtp is not None:
        lines += _model_lines("MTP modules of the target", pair.mtp)
        if pair.mtp.reason is not None:
            lines.append(f"  not usable      {pair.mtp.reason}")
    lines += [line for one in adapters for line in one.lines()]
    return "\n".join([*lines, f"can be served: {'yes' if _is_served(pair, adapters) else 'no'}"])


def _model_lines(role: str, model: "ModelCheck") -> list[str]:
    lines = [
        f"{role}: {model.path}",
        f"  model type      {model.model_type or 'unknown'} ({model.architecture or 'unknown'})",
    ]
    if model.weight_bytes is None or model.kv_bytes_per_token is None:
        return lines
    read = "kept as stored" if model.keeps_quantized else f"read as {_name(model.dtype)}"
    quantization = [f"  quantization    {model.quantization}, {read}"]
    routed = (
        f"  routed experts  {model.routed_bytes_per_token} bytes per token with "
        "--enable-return-routed-experts"
    )
    states = (
        f"  states          {model.state_bytes_per_request} bytes per running request, of "
        "recurrent layers"
    )
    ranks = f" on each of {model.ranks} ranks" if model.ranks > 1 else ""
    source = "config.json and headers" if model.has_tensors else "config.json; no tensors found"
    return [
        *lines,
        f"  implementation  {model.implementation}",
        f"  weights         {model.weight_bytes / 2**20:.1f} MiB{ranks}, {model.parameters} "
        f"parameters in {_name(model.dtype)} ({source})",
        *(quantization if model.quantization is not None else ()),
        f"  KV cache        {model.kv_bytes_per_token} bytes per token in {_name(model.kv_dtype)}"
        f"{ranks}",
        *([states] if model.state_bytes_per_request is not None else ()),
        *([routed] if model.routed_bytes_per_token is not None else ()),
        f"  context length  {model.context_length} tokens",
        *([f"  warning         {model.warning}"] if model.warning is not None else ()),
    ]


def _name(dtype: "torch.dtype | None") -> str | None:
    return None if dtype is None else str(dtype).removeprefix("torch.")
