"""Flags of vLLM and SGLang: every row of the table is taken, ignored or refused as it states."""

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specdecode_api.boot import EngineBoot
from specdecode_api.peer_flags import PeerFlag, Takes, Treatment, read_peer_flags
from specdecode_api.peer_values import CONVERSIONS, CONVERTED_ELSEWHERE
from specdecode_engine.cli.flags import _parser, parse_flags
from specdecode_engine.cli.peers.reader import PeerArguments, read_peer_flags_of
from specdecode_engine.cli.peers.speculative_config import read_config
from specdecode_engine.process import ConfigurationError

TABLE = read_peer_flags()
ROWS = [*TABLE.flags.values(), *TABLE.earlier.values()]
OWN = _parser().flags
MODEL = ["--model-path", "/models/m"]
SECRET = "dKq8-not-for-logs"

# flag, the words after it, what it sets
CONVERTED: tuple[tuple[str, list[str], dict[str, object]], ...] = (
    ("--served-model-name", ["chat"], {"model.served_name": "chat"}),
    ("--dtype", ["half"], {"model.dtype": "float16"}),
    ("--dtype", ["float"], {"model.dtype": "float32"}),
    ("--dtype", ["bfloat16"], {"model.dtype": "bfloat16"}),
    ("--quantization", ["int8"], {"model.quantization": "int8"}),
    ("--model-impl", ["vllm"], {"model.implementation": "native"}),
    ("--model-impl", ["sglang"], {"model.implementation": "native"}),
    ("--model-impl", ["transformers"], {"model.implementation": "transformers"}),
    ("--max-model-len", ["4096"], {"model.context_length": 4096}),
    ("--max-model-len", ["32k"], {"model.context_length": 32_000}),
    ("--max-model-len", ["32K"], {"model.context_length": 32_768}),
    ("--max-model-len", ["25.6k"], {"model.context_length": 25_600}),
    ("--max-model-len", ["auto"], {"model.context_length": None}),
    ("--max-model-len", ["-1"], {"model.context_length": None}),
    ("--enable-return-routed-experts", [], {"model.return_routed_experts": True}),
    ("--gpu-memory-utilization", ["0.9"], {"memory.device_fraction": 0.9}),
    ("--mem-fraction-static", ["0.8"], {"memory.static_fraction": 0.8}),
    ("--kv-cache-memory-bytes", ["2G"], {"memory.kv_cache_bytes": 2 * 2**30}),
    ("--block-size", ["32"], {"memory.page_size": 32}),
    ("--kv-cache-dtype", ["fp8"], {"memory.kv_cache_dtype": "fp8_e4m3"}),
    ("--kv-cache-dtype", ["auto"], {"memory.kv_cache_dtype": "auto"}),
    ("--enable-prefix-caching", [], {"memory.prefix_cache": True}),
    ("--no-enable-prefix-caching", [], {"memory.prefix_cache": False}),
    ("--max-num-seqs", ["128"], {"scheduling.max_running_requests": 128}),
    ("--max-num-batched-tokens", ["8k"], {"scheduling.chunked_prefill_tokens": 8000}),
    ("--chunked-prefill-size", ["8192"], {"scheduling.chunked_prefill_tokens": 8192}),
    ("--async-scheduling", [], {"scheduling.overlap": True}),
    ("--no-async-scheduling", [], {"scheduling.overlap": False}),
    ("--enforce-eager", [], {"graphs.mode": "off"}),
    ("--no-enforce-eager", [], {}),
    ("--disable-decode-cuda-graph", [], {"graphs.mode": "off"}),
    ("--cuda-graph-bs-decode", ["1", "2", "8"], {"graphs.batch_sizes": [1, 2, 8]}),
    ("--cuda-graph-backend-decode", ["disabled"], {"graphs.mode": "off"}),
    ("--allowed-origins", ['["https://a.example"]'], {"server.cors_origins": ["https://a.example"]}),
    ("--shutdown-timeout", ["20"], {"server.drain_seconds": 20.0}),
    ("--tool-call-parser", ["llama3"], {"server.tool_parser": "llama3_json"}),
    ("--tool-call-parser", ["gpt-oss"], {"server.tool_parser": "openai"}),
    ("--tool-call-parser", ["hermes"], {"server.tool_parser": "hermes"}),
    ("--reasoning-parser", ["deepseek-r1"], {"server.reasoning_parser": "deepseek_r1"}),
    ("--reasoning-parser", [""], {"server.reasoning_parser": "none"}),
    ("--enable-prompt-tokens-details", [], {"server.prompt_tokens_details": True}),
    ("--enable-cache-report", [], {"server.prompt_tokens_details": True}),
    ("--otlp-traces-endpoint", ["http://h:4318/v1/traces"], {"server.tracing_endpoint": "http://h:4318"}),
    ("--attention-backend", ["TRITON_ATTN"], {"attention_backend": "triton"}),
    ("--attention-backend", ["torch_native"], {"attention_backend": "torch"}),
    ("--scheduling-policy", ["priority"], {"scheduling.priority": True}),
    ("--scheduling-policy", ["fcfs"], {"scheduling.priority": False}),
    (
        "--lora-modules",
        ["sql=/a", '{"name": "x", "path": "/b", "base_model_name": "m"}'],
        {"adapters.modules": {"sql": "/a", "x": "/b"}},
    ),
    (
        "--lora-paths",
        ["sql=/a=b", '{"lora_name": "x", "lora_path": "/b", "pinned": true}'],
        {"adapters.modules": {"sql": "/a=b", "x": "/b"}},
    ),
    ("--speculative-config", ['{"method": "mtp"}'], {"speculation.algorithm": "MTP"}),
    ("--spec-method", ["eagle3"], {"speculation.algorithm": "EAGLE3"}),
    ("--spec-model", ["/d"], {"speculation.draft_path": "/d"}),
    ("--spec-tokens", ["3"], {"speculation.num_steps": 3}),
    ("--speculative-dflash-block-size", ["16"], {"speculation.num_draft_tokens": 16}),
    ("--speculative-dspark-block-size", ["7"], {"speculation.num_steps": 7}),
    ("--speculative-ngram-min-match-window-size", ["2"], {"speculation.ngram.min_match": 2}),
    ("--speculative-ngram-branch-length", ["18"], {"speculation.ngram.max_depth": 18}),
)  # fmt: skip

# flag, a bad value, a part of the error
BAD_VALUES = (
    ("--lora-modules", "sql", "write NAME=PATH"),
    ("--lora-modules", '{"a":' * 5000, "write NAME=PATH"),
    ("--lora-modules", '{"name": "a", "path": "/a", "nonsense": 1}', "'nonsense' is not a key"),
    ("--lora-modules", "=/a", "write NAME=PATH"),
    ("--lora-paths", '{"name": "a"}', "write NAME=PATH"),
    ("--max-model-len", "long", "write a number, such as 32768, 32k (32000) or 32K"),
    ("--max-model-len", "1.5K", "without a decimal point, or with k"),
    ("--max-num-seqs", "many", "write a whole number"),
    ("--gpu-memory-utilization", "most", "write a number"),
    ("--kv-cache-dtype", "fp8_e5m2", "use one of auto, fp8_e4m3, fp8"),
    ("--attention-backend", "fa3", "use one of auto, flashinfer, triton"),
    ("--chunked-prefill-size", "-1", "prompts are always prefilled in chunks"),
    ("--allowed-origins", "*", "write a JSON list of strings"),
    ("--otlp-traces-endpoint", "localhost:4317", "write a URL of OTLP over HTTP"),
    ("--otlp-traces-endpoint", "http://h:4317", "4317 is the port of OTLP over gRPC"),
    ("--otlp-traces-endpoint", "http://h:99999", "the port is not a number up to 65535"),
    ("--speculative-config", "eagle", "write a JSON object, such as"),
    ("--speculative-config", '{"method": "mtp", "method": "ngram"}', "contains method twice"),
    ("--spec-method", "medusa", "use one of draft_model, eagle"),
    ("--cuda-graph-backend-decode", "breakable", "use one of disabled, or remove the flag"),
)


def read(*words: str) -> PeerArguments:
    return read_peer_flags_of(words, OWN)


def fields(found: PeerArguments) -> dict[str, object]:
    return {place: setting.value for place, setting in found.settings.items()}


def sample(row: PeerFlag) -> list[str]:
    """Words that ask for something."""
    return [] if row.takes in (Takes.SWITCH, Takes.BOOLEAN, Takes.OPTIONAL) else ["7"]


def assert_taken(row: PeerFlag, found: PeerArguments) -> None:
    """A flag of the engine is left to its parser; any other has a case in CONVERTED."""
    if row.conversion in {"same", "api_key"}:
        assert row.flag in OWN
        assert [word.partition("=")[0] for word in found.words] == [row.flag]
        assert found.mistakes == []
    else:
        assert row.conversion in CONVERTED_ELSEWHERE | CONVERSIONS.keys()
        assert row.flag in {flag for flag, _, _ in CONVERTED}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.flag)
def test_a_row_is_taken_ignored_or_refused(row: PeerFlag) -> None:
    spellings = [name for name, is_on in row.spellings.items() if is_on]
    for name in spellings:
        off = f"--no-{name[2:]}" if "true" in row.accepts else name
        found = read(off, *sample(row))
        if row.treatment is Treatment.TAKEN:
            assert_taken(row, found)
            continue
        assert row.remedy
        assert (found.words, found.settings) == ([], {})
        lines = found.notes if row.treatment is Treatment.IGNORED else found.mistakes
        others = found.mistakes if row.treatment is Treatment.IGNORED else found.notes
        assert len(lines) == 1
        assert lines[0].startswith(off)
        assert lines[0].endswith(f": {row.remedy}")
        assert others == []


def test_taken_rows_name_fields_of_the_boot_file() -> None:
    for row in ROWS:
        assert (row.field is not None) == (row.treatment is Treatment.TAKEN)
        kind: Any = EngineBoot
        for name in row.field.split(".") if row.field else ():
            kind = kind.model_fields[name].annotation


@pytest.mark.parametrize(("flag", "words", "expected"), CONVERTED)
def test_a_value_is_converted(flag: str, words: list[str], expected: dict[str, object]) -> None:
    found = read(flag, *words)
    assert (found.mistakes, fields(found)) == ([], expected)
    assert found.words == []


@pytest.mark.parametrize("name", ["a b", "a:b", "/a", "ä", "a" * 129])
def test_a_bad_name_of_an_adapter_is_refused_with_its_flag(name):
    with pytest.raises(ConfigurationError) as refusal:
        parse_flags(["--model-path", "/model", "--lora-modules", f"{name}=/a"])
    text = str(refusal.value)
    assert "--lora-modules" in text
    assert f"{name!r} is not a name for an adapter: use" in text


def test_adapters_of_repeated_flags_are_merged():
    words = ["--model-path", "/model", "--lora-modules", "a=/x", "--lora-modules", "b=/y"]
    assert parse_flags(words).adapters.modules == {"a": "/x", "b": "/y"}
    merged = parse_flags([*words, "--lora-paths", "c=/z", "a=/x"]).adapters.modules
    assert merged == {"a": "/x", "b": "/y", "c": "/z"}
    with pytest.raises(ConfigurationError, match="--lora-modules: a is given twice; rename one"):
        parse_flags([*words, "--lora-modules", "a=/z"])


@pytest.mark.parametrize(("flag", "value", "part"), BAD_VALUES)
def test_a_bad_value_is_refused_with_a_remedy(flag: str, value: str, part: str) -> None:
    for found in (read(flag, value), read(f"{flag}={value}")):
        mistakes = [each for each in found.mistakes if "has no method" not in each]
        assert len(mistakes) == 1
        shown = "" if value.startswith("{") or "://" in value else f" {value}"
        assert mistakes[0].startswith(f"{flag}{shown}: ")
        assert part in mistakes[0]


@pytest.mark.parametrize("row", [row for row in ROWS if row.accepts], ids=lambda row: row.flag)
def test_a_value_that_asks_for_nothing_passes(row: PeerFlag) -> None:
    for value in row.accepts:
        words = [row.flag] if value == "true" else [row.flag, value]
        assert read(*words) == PeerArguments()


@pytest.mark.parametrize("row", [row for row in ROWS if row.is_secret], ids=lambda row: row.flag)
def test_the_value_of_a_secret_is_never_shown(row: PeerFlag) -> None:
    for words in ([row.flag, SECRET], [f"{row.flag}={SECRET}"]):
        with pytest.raises(ConfigurationError) as refused:
            parse_flags([*MODEL, *words])
        assert str(refused.value) == f"{row.flag}: {row.remedy}"


def test_urls_and_json_are_not_shown_since_they_may_contain_keys() -> None:
    url, config = f"http://me:{SECRET}@h:4318", json.dumps({"token": SECRET})
    found = read("--otlp-traces-endpoint", url, "--kv-transfer-config", config)
    assert found.settings["server.tracing_endpoint"].value == url
    assert SECRET not in " ".join([*found.notes, *found.mistakes])


def test_names_belong_to_one_row_each() -> None:
    names = [name for row in ROWS for name in (row.flag, *row.aliases)]
    assert len(names) == len(set(names))


def test_underscores_and_inverse_forms_are_read_as_in_vllm() -> None:
    assert fields(read("--max_model_len=8k")) == {"model.context_length": 8000}
    assert fields(read("--no-enable_prefix-caching")) == {"memory.prefix_cache": False}
    assert fields(read("--disable-prefix-caching")) == {"memory.prefix_cache": False}
    assert read("--kv_cache_bytes", "1").words == ["--kv-cache-bytes", "1"]
    assert read("--no-trust-remote-code") == PeerArguments()
    (mistake,) = read("--trust-remote-code").mistakes
    assert mistake.startswith("--trust-remote-code: the engine never runs code of a checkpoint")
    assert read("--enforce-eager=true").mistakes == [
        "--enforce-eager takes no value: write it alone"
    ]


def test_short_names_and_joined_levels_are_read() -> None:
    assert read("-tp", "2").words == ["--tensor-parallel-size=2"]
    assert read("--model", "/m").words == ["--model-path=/m"]
    for words in (["-O3"], ["-O", "3"], ["-O=3"]):
        assert read(*words).notes[0].startswith("--optimization-level 3 is ignored: ")


def test_a_missing_value_is_refused_by_the_flag() -> None:
    expected = ["--max-num-seqs: a value is missing after it; add it"]
    assert read("--max-num-seqs").mistakes == expected
    assert read("--max-num-seqs", "--enforce-eager").mistakes == expected


def test_words_of_own_flags_stay_where_they_are() -> None:
    words = ["--threads", "3", "--cuda-graph-bs", "1", "2", "--seconds", "-1"]
    assert read(*words, "--max-num-seqs", "8").words == words


def test_flags_that_set_one_field_must_agree(tmp_path: Path) -> None:
    assert read("--max-model-len", "4096", "--max-model-len", "8192").mistakes == []
    with pytest.raises(ConfigurationError) as refused:
        parse_flags([*MODEL, "--max-model-len", "4096", "--context-length", "8192"])
    assert str(refused.value) == (
        "--max-model-len 4096: --context-length is 8192; remove one of them"
    )
    assert parse_flags([*MODEL, "--block-size", "32", "--page-size", "32"]).memory.page_size == 32


def test_errors_of_fields_name_the_flag_that_was_given() -> None:
    with pytest.raises(ConfigurationError, match=r"^--max-num-seqs: input should be less than"):
        parse_flags([*MODEL, "--max-num-seqs", "9999"])
    with pytest.raises(ConfigurationError, match=r"^--gpu-memory-utilization: input should be"):
        parse_flags([*MODEL, "--gpu-memory-utilization", "1.5"])
    with pytest.raises(ConfigurationError, match="both size the cache: remove one"):
        parse_flags([*MODEL, "--gpu-memory-utilization", "0.9", "--mem-fraction-static", "0.8"])


def test_quantization_of_wide_weights_is_refused(tmp_path: Path) -> None:
    config: dict[str, Any] = {"model_type": "llama"}
    for method, is_stored in ((None, False), ("gptq", False), ("awq", True)):
        config["quantization_config"] = {"quant_method": method}
        (tmp_path / "config.json").write_text(json.dumps(config))
        flags = ["--model-path", str(tmp_path), "--quantization", "awq_marlin"]
        if is_stored:
            assert parse_flags(flags).model.quantization == "auto"
        else:
            with pytest.raises(ConfigurationError, match="wider weights would change answers"):
                parse_flags(flags)
    with pytest.raises(ConfigurationError, match=r"^--quantization fp8: /models/m/config.json"):
        parse_flags([*MODEL, "--quantization", "fp8"])


@pytest.mark.parametrize("flag", ["modelopt", "modelopt_fp4", "modelopt_fp8"])
def test_quantization_of_modelopt_is_that_of_either_file(flag: str, tmp_path: Path) -> None:
    flags = ["--model-path", str(tmp_path), "--quantization", flag]
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="wider weights would change answers"):
        parse_flags(flags)
    (tmp_path / "hf_quant_config.json").write_text("{}")
    assert parse_flags(flags).model.quantization == "auto"
    (tmp_path / "hf_quant_config.json").unlink()
    config = {"quantization_config": {"quant_method": "modelopt"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert parse_flags(flags).model.quantization == "auto"


def test_speculative_config_sets_the_fields_of_speculation() -> None:
    text = '{"method": "suffix", "num_speculative_tokens": 8, "suffix_decoding_max_tree_depth": 24,'
    text += '"suffix_decoding_min_token_prob": 0.2, "suffix_decoding_max_cached_requests": 0}'
    speculation = parse_flags([*MODEL, "-sc", text]).speculation
    assert (speculation.algorithm, speculation.num_steps) == ("NGRAM", 8)
    ngram = speculation.ngram
    assert (ngram.source, ngram.scope, ngram.max_depth) == ("suffix", "request", 24)
    assert ngram.min_token_probability == 0.2
    dotted = ["--speculative-config.method", "ngram", "--speculative_config.prompt_lookup_max=4"]
    ngram = parse_flags([*MODEL, *dotted]).speculation.ngram
    assert (ngram.source, ngram.max_depth) == ("prompt", 4)


@pytest.mark.parametrize("key", TABLE.speculative_config)
def test_a_key_of_speculative_config_is_read(key: str) -> None:
    row = TABLE.speculative_config[key]
    value: object = "eagle3" if key == "method" else 7
    found = read_config({"method": "eagle3", key: value})
    errors = [each for each in found.mistakes if "is for the method" not in each]
    if row.treatment is Treatment.TAKEN:
        assert errors == []
        assert row.field in found.settings
    elif row.treatment is Treatment.IGNORED:
        assert found.notes == [f"--speculative-config {key} 7 is ignored: {row.remedy}"]
    else:
        assert errors == [f"--speculative-config {key} 7: {row.remedy}"]
        for accepted in row.accepts:
            assert read_config({"method": "mtp", key: json.loads(f'"{accepted}"')}).mistakes in (
                [],
                [f"--speculative-config {key} is for the method suffix, not mtp: remove it"],
            )
    assert read_config({"method": "mtp", key: None if key != "method" else "mtp"}).mistakes == []


def test_speculative_config_names_unknown_keys_and_a_missing_method() -> None:
    found = read_config({"model": "/d", "draft_model": "/d"})
    assert found.mistakes[0] == (
        "--speculative-config has no key draft_model: remove it, or correct its name"
    )
    assert found.mistakes[1].startswith("--speculative-config has no method: add it")
    wrong = read_config({"method": "mtp", "prompt_lookup_max": 3})
    assert wrong.mistakes == [
        "--speculative-config prompt_lookup_max is for the method ngram, not mtp: remove it"
    ]


def test_what_is_not_taken_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    flags = [*MODEL, "--seed", "1", "--seed", "1", "--max-num-batched-tokens", "2048"]
    with caplog.at_level(logging.INFO):
        parse_flags(flags)
        assert caplog.messages == []
        parse_flags(flags, log_warnings=True)
    seed, tokens = caplog.messages
    assert seed.startswith("--seed 1 is ignored: requests without a seed are drawn at random")
    assert tokens.startswith("--max-num-batched-tokens 2048: it bounds the prompt tokens of a step")


def test_help_shows_the_engines_own_flags_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_flags(["--help"])
    shown = capsys.readouterr().out
    assert "--kv-cache-fraction" in shown
    for flag in ("--gpu-memory-utilization", "--max-model-len", "--mem-fraction-static"):
        assert flag not in shown


def test_flags_are_read_without_torch() -> None:
    code = (
        "import sys; from specdecode_engine.cli.flags import parse_flags\n"
        "parse_flags(['--model', '/m', '--max-num-seqs', '8'])\n"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
