"""The command line of `vllm serve` for a resource. The rows of `VLLM_FIELDS` describe it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from specdecode_api import names
from specdecode_api.duration import duration_s
from specdecode_api.model_uri import HubLocation, parse_uri
from specdecode_api.quantity import whole_amount
from specdecode_api.speculation import DEFAULT_STEPS, Algorithm
from specdecode_api.v1alpha1 import Spec, Speculation
from specdecode_api.v1alpha1.ngram import NgramSpec
from specdecode_api.v1alpha1.serving import TracingSpec
from specdecode_operator.owned.models import Mounts

_METHODS: Final[Mapping[Algorithm, str]] = {
    Algorithm.STANDALONE: "draft_model",
    Algorithm.EAGLE: "eagle",
    Algorithm.EAGLE3: "eagle3",
    Algorithm.DFLASH: "dflash",
    Algorithm.DSPARK: "dspark",
    Algorithm.MTP: "mtp",
}
_BACKENDS: Final = {"FlashInfer": "FLASHINFER", "Triton": "TRITON_ATTN"}


@dataclass(frozen=True, slots=True)
class VllmCheckpoint:
    """A folder, or a repository of the hub, that vLLM opens."""

    name: str
    revision: str | None = None


def checkpoint(uri: str, path: str) -> VllmCheckpoint:
    """What vLLM opens for a URI; `path` is its folder in the pod if it is mounted."""
    location = parse_uri(uri)
    if isinstance(location, HubLocation):
        return VllmCheckpoint(location.repository, location.revision)
    return VllmCheckpoint(path)


def arguments(name: str, spec: Spec, mounts: Mounts) -> list[str]:
    """The words after `vllm`. The operator's come last: of two equal flags, the last one counts.

    Args:
        name: of the resource.
    """
    model = checkpoint(spec.model.uri, mounts.target_path)
    found = ["serve", model.name, *spec.engine.extra_args]
    options: dict[str, Any] = {
        "--host": "0.0.0.0",
        "--port": names.ENGINE_PORT,
        "--revision": model.revision,
        "--served-model-name": spec.model.served_name or name,
        "--dtype": spec.model.dtype,
        "--max-model-len": spec.model.context_length,
        **_sizes(spec),
        **_parsers(spec),
        "--shutdown-timeout": max(1, duration_s(spec.lifecycle.drain_timeout)),
    }
    for flag, value in options.items():
        if value is not None:
            found += [flag, str(value)]
    found += _switches(spec)
    if (drafting := speculative_config(spec, mounts)) is not None:
        found += ["--speculative-config", json.dumps(drafting, separators=(",", ":"))]
    return found


def _sizes(spec: Spec) -> dict[str, Any]:
    engine, parts = spec.engine, spec.parallelism
    scheduler, size = engine.scheduler, engine.kv_cache.size
    has_chunk = "chunked_prefill_tokens" in scheduler.model_fields_set
    return {
        "--block-size": spec.page_size if "page_size" in spec.model_fields_set else None,
        "--kv-cache-memory-bytes": None if size is None else whole_amount(size),
        "--kv-cache-dtype": engine.kv_cache.dtype,
        "--max-num-seqs": scheduler.max_running_requests,
        # vLLM counts running requests too, over all copies of the model.
        "--max-num-queued-reqs": parts.data * scheduler.max_running_requests
        + scheduler.max_queued_requests,
        "--max-num-batched-tokens": scheduler.chunked_prefill_tokens if has_chunk else None,
        "--attention-backend": _BACKENDS.get(engine.attention_backend),
        "--tensor-parallel-size": parts.tensor,
        "--pipeline-parallel-size": parts.pipeline,
        "--data-parallel-size": parts.data,
    }


def _parsers(spec: Spec) -> dict[str, str | None]:
    serving = spec.serving
    return {
        "--tool-call-parser": _named(serving.tool_parser),
        "--reasoning-parser": _named(serving.reasoning_parser),
        "--otlp-traces-endpoint": _traces_url(serving.tracing),
    }


def _traces_url(tracing: TracingSpec | None) -> str | None:
    """vLLM's exporter over HTTP takes the whole URL, not that of the receiver."""
    return None if tracing is None else f"{tracing.endpoint.rstrip('/')}/v1/traces"


def _named(parser: str) -> str | None:
    return None if parser in ("Auto", "None") else parser


def _switches(spec: Spec) -> Iterator[str]:
    engine = spec.engine
    yield (
        "--enable-prefix-caching"
        if engine.kv_cache.prefix_caching
        else ("--no-enable-prefix-caching")
    )
    if _named(spec.serving.tool_parser) is not None:
        yield "--enable-auto-tool-choice"
    if engine.graphs.mode == "Eager":
        yield "--enforce-eager"
    if engine.graphs.batch_sizes:
        yield "--cudagraph-capture-sizes"
        yield from map(str, engine.graphs.batch_sizes)
    if engine.overlap is not None:
        yield "--async-scheduling" if engine.overlap else "--no-async-scheduling"
    if spec.parallelism.expert:
        yield "--enable-expert-parallel"


def speculative_config(spec: Spec, mounts: Mounts) -> dict[str, Any] | None:
    """The value of `--speculative-config`; None without speculation."""
    wanted = spec.speculation
    if wanted.algorithm is Algorithm.NONE:
        return None
    found = {**_method(wanted), **_draft(wanted, mounts)}
    table = token_ranges(wanted, spec.engine.scheduler.max_running_requests)
    if not table:
        steps = DEFAULT_STEPS if wanted.num_steps is None else wanted.num_steps
        return found | {"num_speculative_tokens": steps}
    # A larger number in the table would be lowered to the first one silently.
    largest = max(steps for _, _, steps in table)
    return found | {
        "num_speculative_tokens": largest,
        "num_speculative_tokens_per_batch_size": [list(each) for each in table],
    }


def token_ranges(wanted: Speculation, max_batch_size: int) -> list[tuple[int, int, int]]:
    """The table as vLLM reads it: first and last batch size, both included, and draft tokens.

    The first range begins at 1, as the first entry is for smaller batches too, and the last ends at
    the largest batch. Entries above that are never reached and left out.
    """
    entries = sorted(wanted.adaptive.batch_sizes, key=lambda entry: entry.from_)
    starts = [1, *(entry.from_ for entry in entries[1:])]
    ends = [*(start - 1 for start in starts[1:]), max_batch_size]
    return [
        (start, min(end, max_batch_size), entry.candidate_steps[0])
        for start, end, entry in zip(starts, ends, entries, strict=False)
        if start <= max_batch_size
    ]


def _method(wanted: Speculation) -> dict[str, Any]:
    if wanted.algorithm is Algorithm.NGRAM:
        return _ngram(wanted.ngram or NgramSpec())
    return {"method": _METHODS[wanted.algorithm]}


def _ngram(wanted: NgramSpec) -> dict[str, Any]:
    if wanted.source == "Prompt":
        found: dict[str, Any] = {"method": "ngram", "prompt_lookup_max": wanted.depth}
        least = min(3, wanted.depth) if wanted.min_match is None else wanted.min_match
        return found | {"prompt_lookup_min": least}
    return {
        "method": "suffix",
        "suffix_decoding_max_tree_depth": wanted.depth,
        "suffix_decoding_max_spec_factor": wanted.max_spec_factor,
        "suffix_decoding_min_token_prob": wanted.min_token_probability,
        # 0 keeps nothing of other requests.
        **({} if wanted.scope == "Model" else {"suffix_decoding_max_cached_requests": 0}),
    }


def _draft(wanted: Speculation, mounts: Mounts) -> dict[str, str]:
    if wanted.draft is None:
        return {}
    found = checkpoint(wanted.draft.uri, mounts.draft_path or "")
    revision = {} if found.revision is None else {"revision": found.revision}
    return {"model": found.name, **revision}


def hub_models(spec: Spec) -> Sequence[str]:
    """The URIs of models that vLLM downloads."""
    draft = spec.speculation.draft
    uris = [spec.model.uri, *([draft.uri] if draft is not None else [])]
    return [uri for uri in uris if isinstance(parse_uri(uri), HubLocation)]
