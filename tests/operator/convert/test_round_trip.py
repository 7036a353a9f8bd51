"""The operator's arguments for a converted resource are those of the command line, or listed.

The flags are read by a parser made from the arguments that vLLM 0.32.0 has.
"""

import argparse
import json
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from specdecode_api.peer_flags import normalized
from specdecode_api.peer_values import read_size
from specdecode_operator.objects.resource import parse
from specdecode_operator.owned.models import mounts
from specdecode_operator.owned.runtimes.vllm import arguments

RECORDED = Path(__file__).parents[1] / "runtimes" / "recorded" / "vllm-0.32.0-arguments.json"
OPERATORS = {
    *("--host", "--port", "--served-model-name", "--dtype", "--kv-cache-dtype", "--revision"),
    *("--max-num-seqs", "--max-num-queued-reqs", "--enable-prefix-caching", "--shutdown-timeout"),
    *("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size"),
    "--enable-auto-tool-choice",
}
"""What the operator also sets: its own, defaults of vLLM, and what the notes list."""
IN_ROUTERS_AND_SECRETS = {"--api-key", "--hf-token", "--allowed-origins"}
SIZES = {"--max-model-len", "--max-num-batched-tokens", "--kv-cache-memory-bytes"}
NAMES = {"half": "float16", "fp8": "fp8_e4m3", "flashinfer": "FLASHINFER"}
DEFAULTS = {
    "ngram": {"prompt_lookup_min": 5, "prompt_lookup_max": 5},
    "suffix": {
        "suffix_decoding_max_tree_depth": 24,
        "suffix_decoding_max_spec_factor": 1.0,
        "suffix_decoding_min_token_prob": 0.1,
        "suffix_decoding_max_cached_requests": 10_000,
    },
}
KEYS = {
    "--spec-method": "method",
    "--spec-model": "model",
    "--spec-tokens": "num_speculative_tokens",
}
KINDS: dict[str, Any] = {
    "StoreTrueAction": "store_true",
    "BooleanOptionalAction": argparse.BooleanOptionalAction,
}


def parser():
    found = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    found.add_argument("model_tag", nargs="?")
    for each in json.loads(RECORDED.read_text())["arguments"]:
        flags = [flag for flag in each["flags"] if not flag.startswith("--no-")]
        action = KINDS.get(each["kind"])
        if not flags[0].startswith("-") or "help" in each["kind"].lower() or "-h" in flags:
            continue
        if action is not None:
            found.add_argument(*flags, action=action, default=None, dest=flags[0])
        else:
            nargs = each.get("values") if each.get("values") in ("+", "*", "?") else None
            found.add_argument(*flags, nargs=nargs, dest=flags[0], default=None)
    return found


def options(words):
    """Values by flag, each in one form."""
    spelled = [normalized(word) for word in words]
    read, unknown = parser().parse_known_args(spelled)
    found = {flag: value for flag, value in vars(read).items() if value is not None}
    for flag in SIZES & found.keys():
        found[flag] = found[flag] if found[flag] == "auto" else str(read_size(found[flag]))
    for flag, value in found.items():
        if isinstance(value, str):
            found[flag] = NAMES.get(value.lower(), value)
    if (speculation := speculative_config(found, unknown)) is not None:
        found["--speculative-config"] = speculation
    return found


def speculative_config(found, unknown):
    document = json.loads(found.get("--speculative-config") or "{}")
    for name, value in pairwise(unknown):
        if name.startswith("--speculative-config."):
            key = name.partition(".")[2]
            document[key] = int(value) if value.isdigit() else value
    for flag, key in KEYS.items():
        if (value := found.pop(flag, None)) is not None:
            document[key] = int(value) if value.isdigit() else value
    if not document:
        return None
    method = document["method"].removesuffix("_gpu")
    method = "mtp" if method.endswith("_mtp") else method
    return resolved(document | {"method": method})


def resolved(document):
    """The keys as vLLM completes them."""
    low, high = document.get("prompt_lookup_min"), document.get("prompt_lookup_max")
    if (low is None) != (high is None):
        document |= {"prompt_lookup_min": low or high, "prompt_lookup_max": low or high}
    return DEFAULTS.get(document["method"], {}) | document


def flags_of(line):
    """The words after the program."""
    words = shlex.split(line, comments=True)
    for last in ("serve", "vllm.entrypoints.openai.api_server"):
        if last in words:
            return words[words.index(last) + 1 :]
    return words


def test_arguments_are_those_of_the_command_line_or_listed(converted, good):
    found = converted(good["line"], image=good.get("image"))
    listed = "\n".join(each.given for each in found.dropped)
    before = options(flags_of(good["line"]))
    resource = parse(found.manifest)
    after = options(arguments("chat", resource.spec, mounts(resource.spec))[1:])
    assert (
        after["model_tag"]
        == found.manifest["spec"]["model"]["uri"].removeprefix("hf://").partition("@")[0]
    )
    before_speculation = before.pop("--speculative-config", {})
    after_speculation = after.pop("--speculative-config", {})
    for flag, value in before.items():
        is_word = flag in ("model_tag", "--model") or flag in IN_ROUTERS_AND_SECRETS
        if is_word or flag in ("--nnodes", "--node-rank"):
            continue
        if flag == "--served-model-name":
            value = value[:1]
        # vLLM's default of this switch, which the operator leaves out.
        same = after.get(flag, False if flag == "--enforce-eager" else None) == value
        assert same or is_listed(flag, listed), (flag, value, after.get(flag))
    assert after.keys() - before.keys() <= OPERATORS | {"model_tag"}
    assert_speculation_is_the_same(before_speculation, after_speculation, listed)


def is_listed(flag, listed):
    return flag in listed or flag.replace("--", "--no-", 1) in listed


def assert_speculation_is_the_same(before, after, listed):
    table = "num_speculative_tokens_per_batch_size"
    for key, value in before.items():
        if key == table and key not in listed:
            most = before["num_speculative_tokens"]
            starts = [[first, min(tokens, most)] for first, _, tokens in value]
            assert [[first, tokens] for first, _, tokens in after[key]] == starts
            continue
        is_default = (key, value) == ("draft_tensor_parallel_size", 1)
        assert after.get(key) == value or key in listed or is_default, (key, value)
    completed = {"revision", "suffix_decoding_max_cached_requests"}
    assert after.keys() - before.keys() <= completed | {"num_speculative_tokens"}


def test_the_recipes_of_the_operator_are_converted_back(converted):
    """From a resource to its command line, and to the resource again."""
    recipes = Path(__file__).parents[1] / "owned" / "recipes" / "vllm.yaml"
    for document in yaml.safe_load_all(recipes.read_text()):
        spec = parse(document).spec
        words = arguments(document["metadata"]["name"], spec, mounts(spec))
        draft = document["spec"]["speculation"].get("draft", {}).get("uri")
        found = converted(
            shlex.join(["vllm", *words]),
            name=document["metadata"]["name"],
            model_uri=document["spec"]["model"]["uri"],
            image=document["spec"].get("engine", {}).get("image"),
            draft_uri=draft,
        )
        again = parse(found.manifest).spec
        assert arguments(document["metadata"]["name"], again, mounts(again)) == words
