"""Writes docs/models.md from the engine's families and from published configurations; `--check`
only compares.

What the engine computes itself is its table of families. What it computes through transformers is
what the last recorded run of `make models-zoo` found; a run that lacks a type is an error. For
every configuration of tests/configs `specdecode-engine check` decides.
"""

import json
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from checks.harness.page_table import markdown_table
from specdecode_engine.model.layers.sparse_mlp import ExpertTensors
from specdecode_engine.model.target.families import FAMILIES, Family, Windows
from specdecode_engine.startup.model_check import CheckOptions, ModelCheck, check_pair

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "models.md"
CONFIGS = ROOT / "tests" / "configs"
ZOO = ROOT / "tests" / "zoo" / "models.toml"
RESULTS = ROOT / "bench" / "results"
DRAFTS = {
    "specforge-qwen3-32b-eagle3": "qwen3-32b",
    "specforge-qwen3-4b-eagle3": "qwen3-4b",
    "specforge-qwen3-30b-a3b-eagle3": "qwen3-30b-a3b",
    "specforge-qwen3-30b-a3b-eagle3.1": "qwen3-30b-a3b",
    "specforge-gpt-oss-120b-eagle3": "gpt-oss-120b",
    "specforge-gpt-oss-20b-eagle3-moe": "gpt-oss-20b",
    "speculators-gpt-oss-20b-eagle3": "gpt-oss-20b",
}
"""Drafts among the configurations, and their targets."""

WINDOWS = {
    Windows.NONE: "none",
    Windows.ALL: "`sliding_window` in every layer",
    Windows.SWITCH: "`use_sliding_window`, by `layer_types` or from `max_window_layers` on",
    Windows.ALTERNATE: "by `layer_types`, by default in every other layer",
    Windows.PATTERN: "by `layer_types` or in all but every `sliding_window_pattern`-th layer",
}
EXPERTS = {
    ExpertTensors.SEPARATE: "a mixture of experts in all layers but those under `mlp_only_layers`",
    ExpertTensors.STACKED: "a mixture of experts with biases and a bounded gate in all layers",
}

GEMMA = (
    "norms of 1 + weight, also after attention and the MLP, a gate of GELU, embeddings times "
    "`sqrt(hidden_size)`, softcaps, `query_pre_attn_scalar`"
)
DRAFT_KINDS = "`NONE`, `STANDALONE`, `EAGLE`, `EAGLE3`, `MTP`"
CACHE_TYPES = "weights' type, `fp8_e4m3`"

WAYS = {
    "STANDALONE": "`STANDALONE`, with recurrent layers `NGRAM`",
    "EAGLE3": "`EAGLE3`",
    "fp8_e4m3": "the same, cache in `fp8_e4m3`",
    "graph steps": "steps by graphs",
}
"""What a run of the zoo counts, and how the table names it."""


class StaleResults(Exception):
    """The recorded run of the zoo is not one of the types that are listed now."""


HEAD = (
    "# Models\n\n"
    "This page is written by `python -m scripts.model_table`.\n\n"
    "## Native\n\n"
    "The engine computes these architectures itself, as targets and as `STANDALONE` drafts "
    "([models and drafts](models-and-drafts.md)). No published checkpoint has run on a GPU.\n\n"
)
TESTS = (
    "\nTests: logits against transformers "
    "(`engine/model/transformers/test_transformers_parity.py`), equal bits in any batch "
    "(`engine/model/target/test_batch_invariance.py`), text with every kind of draft, chains "
    "and trees, and the cache in `fp8_e4m3` (`engine/test_families.py`), the same at random and "
    "with static graphs (`make lossless`), every tensor that is missing or misshapen "
    "(`engine/model/checkpoint/test_faulty_tensors.py`).\n\n"
    "## Through transformers\n\n"
    "Model types that `make models-zoo` compares with transformers' own forward (`tests/zoo`). Any "
    "other decoder is audited when it is loaded, and refused with the operation where a row would "
    "depend on its batch.\n\n"
)
PUBLISHED = (
    "\n## Published models\n\n"
    "The answer of `specdecode-engine check` to the configurations of "
    "[tests/configs](../tests/configs/README.md). Weights and KV cache are in the checkpoint's "
    "type.\n\n"
)


def document() -> str:
    """Return the page."""
    return HEAD + _families() + TESTS + _zoo() + PUBLISHED + _published()


def _families() -> str:
    rows = [
        (f"`{name}`", _differences(family), WINDOWS[family.windows], DRAFT_KINDS, CACHE_TYPES)
        for name, family in FAMILIES.items()
    ]
    head = ("architecture", "differences from Llama", "sliding windows", "drafts", "KV cache")
    return markdown_table(head, rows)


def _differences(family: Family) -> str:
    found = []
    if family.always_qkv_bias:
        found.append("biases of q, k and v")
    if family.qk_norm:
        found.append("norms of query and key heads")
    if family.head_dim is not None:
        found.append(f"`head_dim` {family.head_dim} by default")
    if family.attention_bias:
        found.append("`attention_bias` by default")
    if family.sinks:
        found.append("a sink for every query head")
    if "rope_type" in family.rope:
        found.append(f"{family.rope['rope_type']} angles by default")
    if family.experts is not None:
        found.append(EXPERTS[family.experts])
    if family.is_gemma:
        found.append(GEMMA)
    if family.has_local_rope:
        found.append("angles of their own in layers with windows")
    if family.text_section is not None:
        found.append(f"the text model under `{family.text_section}`; tensors of images are skipped")
    return ", ".join(found) or "none"


def _zoo() -> str:
    file = max(RESULTS.glob("models-zoo-*.json"))
    found = json.loads(file.read_text(encoding="utf-8"))
    listed = tomllib.loads(ZOO.read_text(encoding="utf-8"))
    check_results(found, {*listed["required"], *listed["others"]}, set(listed["refused"]))
    columns = ("model type", "computed by", "logits differ by", *WAYS.values())
    rows = [
        (
            f"`{name}`",
            implementation,
            f"{one['logits']:.0e}",
            *(f"{one.get(way, one.get('NGRAM')):,}" for way in WAYS),
        )
        for name, by_implementation in sorted(found["models"].items())
        for implementation, one in by_implementation.items()
    ]
    refused = [(f"`{name}`", reason) for name, reason in sorted(found["refused"].items())]
    run = (
        f"Found by [the run of {found['date']}](../bench/results/{file.name}) "
        f"({found['processor']}, commit {found['commit']}, seed {found['seed']}, "
        f"{found['mismatches']} mismatches): the largest difference of logits in prefill, in "
        "decoding through pages of 1 and 16 and in a tree, in parts of the largest logit (at most "
        "1e-4); random lossless cases by draft, with the KV cache in the weights' type and in "
        "float8; and decode steps of these cases that were replays of static graphs.\n\n"
    )
    return run + markdown_table(columns, rows) + "\n" + markdown_table(("refused", "why"), refused)


def check_results(found: dict[str, Any], served: set[str], refused: set[str]) -> None:
    """Check that a run has found every type to be what it is listed as.

    Raises:
        StaleResults: with the types that differ.
    """
    differ = (served ^ set(found.get("models", ()))) | (refused ^ set(found["refused"]))
    if differ or found["mismatches"]:
        raise StaleResults(
            f"the recorded run of the zoo does not have what tests/zoo/models.toml lists: "
            f"{', '.join(sorted(differ)) or 'it has mismatches'}; run make models-zoo "
            'ARGS="--results bench/results/models-zoo-DATE.json" and make manifests'
        )


def _published() -> str:
    rows: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        for file in sorted(CONFIGS.glob("*.json")):
            place = Path(folder) / file.stem
            place.mkdir()
            shutil.copy(file, place / "config.json")
        for place in sorted(Path(folder).iterdir()):
            rows.append((f"`{place.name}`", *_answer(_check(place))))
    return markdown_table(("model", "served by", "weights", "KV cache", "why not"), rows)


def _check(place: Path) -> ModelCheck:
    target = DRAFTS.get(place.name)
    if target is None:
        return check_pair(place, None, CheckOptions()).target
    draft = check_pair(place.with_name(target), place, CheckOptions()).draft
    assert draft is not None
    return draft


def _answer(model: ModelCheck) -> tuple[str, str, str, str]:
    if model.reason is not None:
        reason = model.reason.removeprefix(f"{model.path / 'config.json'}: ")
        return "–", "", "", reason.replace("|", "\\|")
    assert model.weight_bytes is not None
    assert model.kv_bytes_per_token is not None
    weights = f"{model.weight_bytes / 2**30:.2f} GiB"
    if model.quantization is not None:
        weights += f" or less, from {model.quantization}"
    cache = f"{model.kv_bytes_per_token:,} bytes per token"
    if model.state_bytes_per_request is not None:
        cache += f", {model.state_bytes_per_request:,} per request"
    return str(model.implementation), weights, cache, ""


def main(arguments: list[str]) -> int:
    """Write or check; returns the exit code."""
    try:
        text = document()
    except StaleResults as error:
        print(error)
        return 1
    if "--check" not in arguments:
        DOCUMENT.write_text(text, encoding="utf-8")
    elif not DOCUMENT.exists() or DOCUMENT.read_text(encoding="utf-8") != text:
        print("docs/models.md is not that of the engine's families; run `make manifests`")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
