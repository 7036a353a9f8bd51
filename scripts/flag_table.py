"""Writes docs/from-vllm-and-sglang.md from the tables of flags and others; `--check` only compares.

The rows of flags are those of `specdecode_api.peer_flags`, which the engine's command line reads
too; `scripts.field_table` has the fields of requests, `scripts.server_tables` endpoints, metrics
and the comparison.
"""

import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from checks.harness.page_table import markdown_table
from checks.peer_fields.table import RequestFields, read_request_fields
from checks.peer_server.comparison import read_comparison
from checks.peer_server.table import read_endpoints, read_metric_rows
from scripts import server_tables
from scripts.field_table import section
from specdecode_api.peer_flags import Peer, PeerFlag, PeerFlags, Treatment, read_peer_flags
from specdecode_api.peer_values import CONVERSIONS, CONVERTED_ELSEWHERE
from specdecode_engine.cli.flags import OWN_FLAGS

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "from-vllm-and-sglang.md"

CONVERSION_TEXTS = {
    "same": "as it is",
    "text": "as it is",
    "integer": "as it is",
    "integers": "as it is",
    "number": "as it is",
    "boolean": "as it is",
    "size": "a number, or one such as `32k` (32,000) and `32K` (32,768)",
    "context_length": "a number, `32k`, `32K`; `auto` and `-1` are the model's own maximum",
    "chunk": "as it is; `-1` is refused",
    "one_name": "one name",
    "api_key": "keys; only digests are kept",
    "eager": "set: `graphs.mode` is `off`",
    "graph_backend": "`disabled`: `graphs.mode` is `off`",
    "dtype": "`half` is `float16`, `float` is `float32`",
    "quantization": "`int8`, `int4`; the format that the checkpoint has passes, any other is "
    "refused",
    "model_impl": "`vllm` and `sglang` are `native`",
    "kv_cache_dtype": "`auto`, `fp8_e4m3`; `fp8` is `fp8_e4m3`",
    "attention_backend": "`flashinfer`, `triton`, `torch`, and vLLM's names of these",
    "adapters": "`NAME=PATH`, or JSON with `name` and `path`, or `lora_name` and `lora_path`",
    "json_strings": "a JSON list",
    "tracing_endpoint": "a URL of OTLP over HTTP; `/v1/traces` at its end is removed",
    "tool_parser": "names of both; those of formats that are not read are refused",
    "reasoning_parser": "names of both; those of formats that are not read are refused",
    "scheduling_policy": "`priority`: on, `fcfs`: off",
    "spec_method": "`eagle`, `eagle3`, `mtp`, `dflash`, `dspark`, `draft_model` (STANDALONE), "
    "`ngram` and `suffix` (NGRAM)",
    "speculative_config": "each key is checked, see below",
}

HEAD = (
    "# From vLLM and SGLang\n\n"
    "What becomes of the flags, request fields, endpoints and metrics of vLLM {vllm} and SGLang "
    "{sglang}, and what is better and what is missing here. "
    "This page is written by `python -m scripts.flag_table`.\n\n"
)

FLAGS = (
    "\n## Flags\n\n"
    "`specdecode-engine` reads the flags of `vllm serve` {vllm} and `sglang.launch_server` "
    "{sglang}. A flag is taken, ignored with one line in the log, or refused with what to use "
    "instead; all errors of a command line are reported together. A flag is taken only where "
    "its meaning is the same, or can be converted. What would change answers, or needs trust, "
    "is refused. Where both define a flag with a different meaning, that of vLLM counts.\n\n"
    "Underscores are read as hyphens. A flag that vLLM defines as a boolean exists with "
    "`--no-` too, and `--enable-x` as `--disable-x`. Values of refused flags that ask for "
    "nothing, such as `--pipeline-parallel-size 1` and `--no-trust-remote-code`, pass. Two "
    "flags that set one field must agree. `specdecode-engine --help` lists the engine's own "
    "flags. `kubectl specdecode convert` writes a resource for a command line of `vllm serve` "
    "([from a command line](runtimes.md#from-a-command-line)).\n\n"
    "`make peer-flags` reads the flags from the wheels of both, without an import, and fails "
    "where one has no row.\n\n"
    "## Memory\n\n"
    "`--gpu-memory-utilization` is a share of the whole device for weights, buffers, CUDA "
    "graphs and KV cache together. `--mem-fraction-static` is a share of the memory that is "
    "free before loading, for weights and KV cache; buffers and graphs are in the rest. "
    "`--kv-cache-fraction`, the engine's own, is a share of what is free after loading. The "
    "log reports the bytes that a share leaves for the KV cache, and the whole memory plan.\n\n"
)


def document(table: PeerFlags, fields: RequestFields) -> str:
    """Return the page."""
    rows = [*table.flags.values(), *table.earlier.values()]
    keys = list(table.speculative_config.values())
    versions = {str(peer): version for peer, version in table.versions.items()}
    return "".join(
        [
            HEAD.format_map(versions),
            server_tables.comparison(read_comparison()),
            FLAGS.format_map(versions),
            "## Flags that are taken\n\n",
            _taken(rows, table.earlier.values()),
            "\n## Keys of `--speculative-config`\n\n",
            "A key may also be a flag, as in `--speculative-config.method eagle3`.\n\n",
            _taken(keys),
            "\n",
            _others_of_keys(keys),
            "\n## Flags that are ignored\n\n",
            _others(rows, Treatment.IGNORED),
            "\n## Flags that are refused\n\n",
            _others(rows, Treatment.REFUSED),
            section(fields),
            server_tables.endpoints(read_endpoints()),
            server_tables.metrics(read_metric_rows()),
        ]
    )


def _taken(rows: Iterable[PeerFlag], earlier: Collection[PeerFlag] = ()) -> str:
    taken = [row for row in rows if row.treatment is Treatment.TAKEN]
    lines = [
        (
            ", ".join(f"`{name}`" for name in (row.flag, *row.aliases)),
            " and ".join(_TITLES[peer] for peer in row.peers) + " before" * (row in earlier),
            _ours(row),
            _value(row),
        )
        for row in sorted(taken, key=lambda row: row.flag)
    ]
    return markdown_table(("flag", "of", "sets", "value"), lines)


_TITLES = {Peer.VLLM: "vLLM", Peer.SGLANG: "SGLang"}


def _ours(row: PeerFlag) -> str:
    assert row.field is not None
    own = row.flag if row.conversion in {"same", "api_key"} else OWN_FLAGS.get(row.field)
    field = f"`{row.field}`"
    return field if own in (None, row.flag) else f"{field} (`{own}`)"


def _value(row: PeerFlag) -> str:
    assert row.conversion is not None
    text = CONVERSION_TEXTS[row.conversion]
    return text if row.note is None else f"{text}; {_with_code(row.note)}"


def _others_of_keys(rows: Iterable[PeerFlag]) -> str:
    lines = []
    for treatment in (Treatment.IGNORED, Treatment.REFUSED):
        for remedy, group in _by_remedy(rows, treatment).items():
            lines.append((_names(group), str(treatment), _with_code(remedy)))
    return markdown_table(("key", "", "instead"), lines)


def _others(rows: Iterable[PeerFlag], treatment: Treatment) -> str:
    lines = [
        (
            _names(row for row in group if Peer.VLLM in row.peers),
            _names(row for row in group if Peer.SGLANG in row.peers),
            _with_code(remedy),
        )
        for remedy, group in _by_remedy(rows, treatment).items()
    ]
    return markdown_table(("vLLM", "SGLang", "instead"), lines)


def _by_remedy(rows: Iterable[PeerFlag], treatment: Treatment) -> Mapping[str, list[PeerFlag]]:
    found = dict[str, list[PeerFlag]]()
    for row in sorted(rows, key=lambda row: row.flag):
        if row.treatment is treatment:
            assert row.remedy is not None
            found.setdefault(row.remedy, []).append(row)
    return found


def _names(rows: Iterable[PeerFlag]) -> str:
    return ", ".join(_name(row) for row in rows)


def _name(row: PeerFlag) -> str:
    accepted = ", ".join(f"`{value}`" for value in row.accepts)
    return f"`{row.flag}`" + (f" (but {accepted})" if accepted else "")


def _with_code(text: str) -> str:
    """Mark flags, fields and files as code."""
    return _CODE.sub(r"`\g<0>`", text)


_CODE = re.compile(
    r"(?<![\w/-])(--[a-z][a-z0-9-]*|[A-Z]+(_[A-Z]+)+|hf://[A-Z/@]+|[a-z]+([._/][a-z_]+)+)"
)


def undescribed() -> Iterator[str]:
    """Yield conversions that the page does not describe."""
    yield from sorted((CONVERSIONS.keys() | CONVERTED_ELSEWHERE) - CONVERSION_TEXTS.keys())


def main(arguments: list[str]) -> int:
    """Write or check; returns the exit code."""
    text = document(read_peer_flags(), read_request_fields())
    if "--check" not in arguments:
        DOCUMENT.write_text(text, encoding="utf-8")
    elif not DOCUMENT.exists() or DOCUMENT.read_text(encoding="utf-8") != text:
        print("docs/from-vllm-and-sglang.md is not that of the rows; run `make manifests`")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
