"""The boot file round-trips, and each error names the field and the remedy."""

import json

import pytest
from pydantic import ValidationError

from specdecode_api.boot import EngineBoot, SpeculationBoot, TableEntry
from specdecode_api.speculation import Algorithm, Policy
from specdecode_api.table import default_table
from specdecode_api.validation_errors import validation_errors

LEAST = {"model": {"path": "/models/target"}}
EVERYTHING = {
    "version": 1,
    "config_hash": "v1-0",
    "model": {
        "path": "/models/target",
        "served_name": "meta/llama",
        "dtype": "bfloat16",
        "quantization": "int4",
        "sum_order": "inputs",
        "implementation": "transformers",
        "return_routed_experts": True,
        "context_length": 4096,
    },
    "speculation": {
        "algorithm": "EAGLE3",
        "draft_path": "/models/draft",
        "topk": 1,
        "num_steps": 3,
        "num_draft_tokens": 4,
        "fallback": "NGRAM",
        "ngram": {
            "source": "suffix",
            "scope": "request",
            "max_depth": None,
            "min_match": None,
            "min_breadth": 1,
            "max_breadth": 10,
            "match": "BFS",
            "capacity": 1000000,
            "min_token_probability": 0.1,
            "max_spec_factor": 1.0,
        },
        "policy": "goodput",
        "objective": "inter_token_latency",
        "max_inter_token_ms": 30.5,
        "table": {
            "1": {
                "candidate_steps": [1, 3, 5],
                "verify_tokens": None,
                "up_hysteresis": 0.5,
                "down_hysteresis": 0.0,
                "ceiling_coeff": 1.5,
                "ema_alpha": 0.5,
                "update_interval": 2,
                "warmup_batches": 0,
            }
        },
        "table_path": None,
        "tuned": {
            "1": {
                "candidate_steps": [3],
                "verify_tokens": None,
                "up_hysteresis": 0.0,
                "down_hysteresis": -0.25,
                "ceiling_coeff": 0.0,
                "ema_alpha": 0.2,
                "update_interval": 5,
                "warmup_batches": 10,
            }
        },
        "profile_seconds": 0.5,
    },
    "memory": {
        "page_size": 1,
        "kv_cache_bytes": 1048576,
        "max_total_tokens": 4096,
        "kv_cache_fraction": 0.5,
        "device_fraction": 0.75,
        "static_fraction": None,
        "prefix_cache": False,
        "kv_cache_dtype": "fp8_e4m3",
    },
    "scheduling": {
        "max_running_requests": 2,
        "max_queued_requests": 0,
        "chunked_prefill_tokens": 16,
        "prefill_delay_steps": 2.5,
        "priority": True,
        "overlap": False,
    },
    "server": {
        "host": "127.0.0.1",
        "port": 0,
        "management_port": 8001,
        "management_host": "127.0.0.2",
        "drain_socket": "/run/specdecode/engine.sock",
        "drain_seconds": 0.5,
        "max_body_bytes": 65536,
        "step_timeout_seconds": 60,
        "engine_process": "on",
        "api_key_path": "/keys",
        "router_token_path": "/tokens",
        "owner": "3f6c",
        "request_labels": ["code"],
        "cors_origins": ["https://chat.example.com", "http://localhost:3000"],
        "page": True,
        "tracing_endpoint": "http://127.0.0.1:4318",
        "response_store_bytes": 2**28,
        "request_headers_timeout_seconds": 2.5,
        "request_body_timeout_seconds": 30,
        "prompt_tokens_details": True,
        "metrics_on_api_port": True,
        "tool_parser": "hermes",
        "reasoning_parser": "none",
    },
    "graphs": {"mode": "static", "batch_sizes": [1, 2], "max_bytes": 1, "max_seconds": 0.5},
    "parallelism": {"tensor": 2},
    "adapters": {"modules": {}, "max_rank": 64, "root": None, "max_loaded": 8},
    "device": "cpu",
    "attention_backend": "torch",
    "threads": 2,
    "cpu_affinity": "0-1,3",
}


@pytest.mark.parametrize("document", [LEAST, EVERYTHING], ids=["least", "everything"])
def test_boot_file_survives_a_round_trip(document):
    boot = EngineBoot.model_validate_json(json.dumps(document))
    assert EngineBoot.model_validate_json(boot.model_dump_json()) == boot


def test_nothing_of_a_boot_file_is_lost():
    boot = EngineBoot.model_validate_json(json.dumps(EVERYTHING))
    assert json.loads(boot.model_dump_json()) == EVERYTHING


def test_everything_is_everything():
    """The document above has every field there is."""

    def keys(value):
        if not isinstance(value, dict):
            return value if not isinstance(value, list) else None
        return {key: keys(item) for key, item in value.items()}

    schema = EngineBoot.model_json_schema()
    written = keys(EVERYTHING)
    assert written.keys() == schema["properties"].keys()
    for name, part in schema["$defs"].items():
        if part.get("type") == "object":
            assert part["properties"].keys() <= _all_keys(EVERYTHING), name


def _all_keys(value):
    if not isinstance(value, dict):
        return set()
    return set(value).union(*(_all_keys(item) for item in value.values()))


BAD = {
    "no model": ({"model": None}, "model: input should be a valid dictionary"),
    "no path": ({"model": {}}, "model.path: is required: add it"),
    "typo": ({"modle": {}}, "modle: no such field; did you mean model?"),
    "typo below": (
        {"memory": {"page_sise": 1}},
        "memory.page_sise: no such field; did you mean page_size?",
    ),
    "typo in the table": (
        {"speculation": {"table": {"1": {"candidate_steps": [1], "alpha": 1}}}},
        "speculation.table.1.alpha: no such field; did you mean ema_alpha?",
    ),
    "unlike any field": (
        {"server": {"xyzzy": 1}},
        "server.xyzzy: no such field; remove it, or use one of host, port, management_port, "
        "management_host, drain_socket, drain_seconds, max_body_bytes, "
        "step_timeout_seconds",
    ),
    "origin with a path": (
        {"server": {"cors_origins": ["https://a.example/"]}},
        "server.cors_origins[0]: string should match pattern",
    ),
    "receiver of spans without a scheme": (
        {"server": {"tracing_endpoint": "collector:4318"}},
        "server.tracing_endpoint: string should match pattern",
    ),
    "another version": ({"version": 2}, "version: input should be 1; got 2"),
    "type": (
        {"model": {"path": "m", "dtype": "int8"}},
        "model.dtype: input should be 'auto', 'bfloat16', 'float16', 'float32' or 'float64'; "
        "got 'int8'",
    ),
    "page": ({"memory": {"page_size": 12}}, "memory.page_size: page_size must be a power of two"),
    "page too large": (
        {"memory": {"page_size": 512}},
        "memory.page_size: input should be less than or equal to 256; got 512",
    ),
    "no draft": (
        {"speculation": {"algorithm": "EAGLE", "num_steps": 1}},
        "speculation: algorithm EAGLE needs draft_path: add it",
    ),
    "draft too many": (
        {"speculation": {"algorithm": "NGRAM", "draft_path": "d"}},
        "speculation: algorithm NGRAM takes no draft_path: remove it",
    ),
    "none with draft steps": (
        {"speculation": {"num_steps": 1}},
        "speculation: algorithm NONE does not draft: remove num_steps",
    ),
    "none with a table": (
        {"speculation": {"table": {"1": {"candidate_steps": [0]}}}},
        "speculation: algorithm NONE does not draft: remove table",
    ),
    "latency without a limit": (
        {"speculation": {"policy": "goodput", "objective": "inter_token_latency"}},
        "speculation: objective inter_token_latency has no limit: add max_inter_token_ms",
    ),
    "limit without its objective": (
        {"speculation": {"algorithm": "NGRAM", "policy": "goodput", "max_inter_token_ms": 30.5}},
        "objective throughput has no limit: remove max_inter_token_ms 30.5, or set objective",
    ),
    "latency under another policy": (
        {
            "speculation": {
                "algorithm": "NGRAM",
                "policy": "ema",
                "objective": "inter_token_latency",
                "max_inter_token_ms": 30,
            }
        },
        "policy ema does not know what steps cost: remove objective inter_token_latency, or choose "
        "policy goodput",
    ),
    "limit that is not a number": (
        {"speculation": {"max_inter_token_ms": float("nan")}},
        "speculation.max_inter_token_ms",
    ),
    "limit of nothing": (
        {"speculation": {"max_inter_token_ms": 0}},
        "speculation.max_inter_token_ms: input should be greater than 0",
    ),
    "none with an objective": (
        {
            "speculation": {
                "policy": "goodput",
                "objective": "inter_token_latency",
                "max_inter_token_ms": 30,
            }
        },
        "speculation: algorithm NONE does not draft: remove objective",
    ),
    "two errors at once": (
        {"speculation": {"topk": 2, "num_draft_tokens": 3}},
        "remove topk, or choose an algorithm; algorithm NONE does not draft: remove num_draft",
    ),
    "chain": (
        {"speculation": {"algorithm": "NGRAM", "num_steps": 3, "num_draft_tokens": 3}},
        "speculation: num_draft_tokens 3 must be num_steps + 1 = 4 with topk 1: remove it",
    ),
    "tree": (
        {"speculation": {"algorithm": "NGRAM", "topk": 2, "num_steps": 2, "num_draft_tokens": 9}},
        "num_draft_tokens 9 is outside 2..7, the bounds for topk 2 and num_steps 2",
    ),
    "draft steps at start": (
        {
            "speculation": {
                "algorithm": "NGRAM",
                "num_steps": 2,
                "table": {"1": {"candidate_steps": [1, 3]}},
            }
        },
        "speculation: num_steps 2 is in no entry of the table: use one of [1, 3]",
    ),
    "draft steps at start outside a default table": (
        {"speculation": {"algorithm": "NGRAM", "num_steps": 2, "policy": "ema"}},
        "speculation: num_steps 2 is in no entry of the table: use one of [0, 1, 3, 5, 7]",
    ),
    "ngram of another algorithm": (
        {"speculation": {"ngram": {"source": "trie"}}},
        "speculation: algorithm NONE does not read ngram: remove it, or use NGRAM as algorithm or "
        "fallback",
    ),
    "fallback without a draft model": (
        {"speculation": {"algorithm": "NGRAM", "fallback": "NGRAM"}},
        "speculation: algorithm NGRAM has no draft model to stand in for: remove fallback, or "
        "choose an algorithm that drafts with a model",
    ),
    "another fallback": (
        {"speculation": {"algorithm": "MTP", "fallback": "EAGLE"}},
        "speculation.fallback: input should be 'NGRAM'",
    ),
    "breadths": (
        {"speculation": {"algorithm": "NGRAM", "ngram": {"min_breadth": 11}}},
        "min_breadth 11 is more than max_breadth 10: lower it or raise max_breadth",
    ),
    "match longer than max_depth": (
        {"speculation": {"algorithm": "NGRAM", "ngram": {"min_match": 9, "max_depth": 8}}},
        "min_match 9 is more than max_depth 8: lower it or raise max_depth",
    ),
    "memory of a lookup": (
        {"speculation": {"algorithm": "NGRAM", "ngram": {"source": "prompt", "scope": "model"}}},
        "source prompt has no memory of other requests: use scope request, or source suffix",
    ),
    "two tables": (
        {
            "speculation": {
                "algorithm": "NGRAM",
                "table": {"1": {"candidate_steps": [0]}},
                "table_path": "table.json",
            }
        },
        "speculation: table and table_path both give a table: remove one of them",
    ),
    "none with a file": (
        {"speculation": {"table_path": "table.json"}},
        "algorithm NONE does not draft: remove table_path",
    ),
    "draft steps twice": (
        {"speculation": {"table": {"1": {"candidate_steps": [1, 3, 1]}}}},
        "speculation.table.1.candidate_steps: every value may occur once: remove the repeated [1]",
    ),
    "verified tokens next to a fallback": (
        {
            "speculation": {
                "algorithm": "EAGLE3",
                "draft_path": "/d",
                "topk": 4,
                "fallback": "NGRAM",
                "policy": "goodput",
                "table": {"8": {"candidate_steps": [3], "verify_tokens": 2}},
            }
        },
        "speculation: verify_tokens 2 of entry 8 is for a draft model alone under policy goodput "
        "or static; algorithm is EAGLE3, fallback NGRAM, policy goodput: remove verify_tokens, or "
        "change these",
    ),
    "verified tokens of ngram": (
        {
            "speculation": {
                "algorithm": "NGRAM",
                "tuned": {"1": {"candidate_steps": [3], "verify_tokens": 1}},
            }
        },
        "verify_tokens 1 of entry 1 is for a draft model alone",
    ),
    "more verified tokens than a chain has": (
        {
            "speculation": {
                "algorithm": "MTP",
                "table": {"1": {"candidate_steps": [3, 1], "verify_tokens": 4}},
            }
        },
        "speculation: verify_tokens 4 of entry 1 is above the 3 tokens that its candidate_steps "
        "[1, 3] draft at most: lower it or remove it, or add more draft steps",
    ),
    "more verified tokens than a tree has": (
        {
            "speculation": {
                "algorithm": "EAGLE3",
                "draft_path": "/d",
                "topk": 4,
                "num_steps": 2,
                "num_draft_tokens": 6,
                "tuned": {"8": {"candidate_steps": [2], "verify_tokens": 6}},
            }
        },
        "speculation: verify_tokens 6 of entry 8 is above the 5 tokens that its candidate_steps "
        "[2] draft at most: lower it or remove it, or add more draft steps",
    ),
    "no verified tokens": (
        {"speculation": {"table": {"1": {"candidate_steps": [1], "verify_tokens": 0}}}},
        "speculation.table.1.verify_tokens: input should be greater than or equal to 1; got 0",
    ),
    "a boolean is not a number of steps": (
        {"speculation": {"table": {"1": {"candidate_steps": [True]}}}},
        "speculation.table.1.candidate_steps[0]: input should be a valid integer; got True",
    ),
    "no list": (
        {"speculation": {"table": {"1": {"candidate_steps": 3}}}},
        "speculation.table.1.candidate_steps: input should be a valid list; got 3",
    ),
    "profile": (
        {"speculation": {"profile_seconds": 601}},
        "speculation.profile_seconds: input should be less than or equal to 600; got 601",
    ),
    "batch size": (
        {"speculation": {"table": {"08": {"candidate_steps": [1]}}}},
        "string should match pattern '^[1-9][0-9]{0,5}$'; got '08'",
    ),
    "no rank": (
        {"parallelism": {"tensor": 0}},
        "parallelism.tensor: input should be greater than or equal to 1; got 0",
    ),
    "ranks of no machine": (
        {"parallelism": {"tensor": 17}},
        "parallelism.tensor: input should be less than or equal to 16; got 17",
    ),
    "ranks without processes": (
        {"parallelism": {"tensor": 3}, "server": {"engine_process": "off"}},
        "server.engine_process: off would leave no process for the ranks, and parallelism.tensor "
        "is 3: use auto or on",
    ),
    "ranks with a draft that reads the target's cache": (
        {
            "parallelism": {"tensor": 2},
            "speculation": {"algorithm": "FROZEN_KV_MTP", "draft_path": "/d"},
        },
        "speculation.algorithm: the draft of FROZEN_KV_MTP reads all keys and values of the "
        "target, of which each rank has a part, and parallelism.tensor is 2: use 1, or another "
        "algorithm",
    ),
    "port": (
        {"server": {"port": 65536}},
        "server.port: input should be less than or equal to 65535; got 65536",
    ),
}


@pytest.mark.parametrize(("document", "expected"), BAD.values(), ids=BAD)
def test_bad_boot_file_is_refused_with_place_and_remedy(document, expected):
    with pytest.raises(ValidationError) as refusal:
        EngineBoot.model_validate({**LEAST, **document})
    sentences = validation_errors(refusal.value, EngineBoot)
    assert any(expected in sentence for sentence in sentences), sentences


@pytest.mark.parametrize(
    ("tensor", "setting", "has_process"),
    [(1, "auto", False), (1, "on", True), (1, "off", False), (2, "auto", True), (2, "on", True)],
)
def test_several_ranks_run_in_processes_of_their_own(tensor, setting, has_process):
    boot = EngineBoot.model_validate(
        {**LEAST, "parallelism": {"tensor": tensor}, "server": {"engine_process": setting}}
    )
    assert boot.has_engine_process is has_process


def test_every_problem_is_reported_at_once():
    with pytest.raises(ValidationError) as refusal:
        EngineBoot.model_validate(
            {"memory": {"page_size": 3}, "threads": 0, "server": {"port": -1}}
        )
    places = [each.partition(": ")[0] for each in validation_errors(refusal.value, EngineBoot)]
    assert places == ["model", "memory.page_size", "server.port", "threads"]


def test_long_value_does_not_bury_the_message():
    with pytest.raises(ValidationError) as refusal:
        EngineBoot.model_validate({**LEAST, "device": "x" * 500})
    (sentence,) = validation_errors(refusal.value, EngineBoot)
    assert sentence == "device: input should be 'auto', 'cpu' or 'cuda'; got '<500 characters>'"


def test_text_that_is_not_json_is_refused():
    with pytest.raises(ValidationError) as refusal:
        EngineBoot.model_validate_json("{")
    (sentence,) = validation_errors(refusal.value, EngineBoot)
    assert sentence.startswith("document: invalid JSON")


def test_an_adaptive_policy_without_a_table_has_the_default_one():
    for policy in Policy:
        boot = SpeculationBoot(algorithm=Algorithm.NGRAM, num_steps=3, policy=policy)
        assert boot.entries == default_table(policy)
        assert boot.table == {}
    assert SpeculationBoot(policy=Policy.EMA).entries == {}, "plain decoding needs none"


def test_a_table_that_was_read_takes_the_place_of_its_file():
    boot = SpeculationBoot(algorithm=Algorithm.NGRAM, num_steps=3, table_path="table.json")
    read = boot.with_table({"4": TableEntry(candidate_steps=(3,))})
    assert (read.table_path, list(read.entries), read.num_steps) == (None, ["4"], 3)
    assert SpeculationBoot.model_validate_json(read.model_dump_json()) == read


@pytest.mark.parametrize(
    ("sections", "place", "remedy"),
    [
        ({"adapters": {"modules": {"a:b": "/a"}}}, "adapters.modules", "a:b"),
        ({"adapters": {"modules": {"": "/a"}}}, "adapters.modules", "letters"),
        ({"adapters": {"modules": {"a": ""}}}, "adapters.modules", "1 character"),
        ({"adapters": {"modules": {"target": "/a"}}}, "adapters.modules", "set model.served_name"),
        (
            {"adapters": {"modules": {"a": "/a"}}, "parallelism": {"tensor": 2}},
            "adapters.modules",
            "merge the adapter",
        ),
        (
            {"adapters": {"root": "/a"}, "parallelism": {"tensor": 2}},
            "adapters.root",
            "parallelism.tensor is 2: use 1",
        ),
        ({"adapters": {"max_rank": 513}}, "adapters.max_rank", "512"),
        ({"adapters": {"max_loaded": 257}}, "adapters.max_loaded", "256"),
        ({"adapters": {"max_loaded": 0}}, "adapters.max_loaded", "1"),
        ({"adapters": {"root": ""}}, "adapters.root", "1 character"),
    ],
)
def test_adapters_are_refused_by_name(sections, place, remedy):
    with pytest.raises(ValidationError) as refusal:
        EngineBoot.model_validate(LEAST | sections)
    (error,) = validation_errors(refusal.value, EngineBoot)
    assert error.startswith(place)
    assert remedy in error


@pytest.mark.parametrize(
    ("adapters", "num_slots"),
    [
        ({}, 0),
        ({"modules": {"a": "/a", "b": "/b"}}, 2),
        ({"modules": {"a": "/a", "b": "/b"}, "max_loaded": 1}, 2),
        ({"modules": {"a": "/a", "b": "/b"}, "max_loaded": 5}, 5),
        ({"root": "/a"}, 1),
        ({"root": "/a", "modules": {"a": "/a", "b": "/b"}}, 2),
    ],
)
def test_adapters_of_the_start_always_have_places(adapters, num_slots):
    boot = EngineBoot.model_validate(LEAST | {"adapters": adapters})
    assert boot.adapters.num_slots == num_slots


def test_adapters_have_names_and_folders():
    named = {"path": "/models/target", "served_name": "a:b"}
    modules = {"sql": "/adapters/sql", "target": "relative/folder"}
    boot = EngineBoot.model_validate({"model": named, "adapters": {"modules": modules}})
    assert boot.served_name == "a:b"
    assert boot.adapters.modules == modules
    assert EngineBoot.model_validate(LEAST).served_name == "target"
