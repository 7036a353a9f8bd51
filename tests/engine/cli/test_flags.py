"""The command line on depth: who decides, in which table, starting where."""

import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from specdecode_api.boot import SpeculationBoot
from specdecode_api.speculation import Algorithm, Policy
from specdecode_engine.__main__ import _COMMANDS
from specdecode_engine.cli.flags import parse_flags
from specdecode_engine.process import ConfigurationError

NGRAM = ["--model-path", "/models/m", "--speculative-algorithm", "NGRAM"]
TABLE = {"1": {"candidate_steps": [2, 4, 6]}, "8": {"candidate_steps": [0, 1]}}


@pytest.fixture
def write(tmp_path: Path):
    def write(document: Any, name: str = "table.json") -> str:
        path = tmp_path / name
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return str(path)

    return write


def read(*arguments: str) -> SpeculationBoot:
    return parse_flags([*NGRAM, *arguments]).speculation


def refusal(*arguments: str) -> list[str]:
    with pytest.raises(ConfigurationError) as refused:
        parse_flags([*NGRAM, *arguments])
    return str(refused.value).splitlines()


def test_without_flags_nothing_adapts() -> None:
    speculation = read()
    assert (speculation.policy, speculation.num_steps) == (Policy.STATIC, None)
    assert speculation.entries == {}


def test_adaptive_is_goodput_with_its_default_table() -> None:
    speculation = read("--speculative-adaptive")
    assert (speculation.policy, speculation.num_steps) == (Policy.GOODPUT, None)
    assert list(speculation.entries) == ["1"]
    assert read("--speculative-adaptive", "--speculative-num-steps", "2").num_steps == 2


@pytest.mark.parametrize("policy", Policy)
def test_the_policy_can_be_named(policy: Policy) -> None:
    arguments = ("--speculative-adaptive-policy", policy.value)
    assert read(*arguments).policy is policy
    assert read("--speculative-adaptive", *arguments).policy is policy
    assert refusal("--speculative-adaptive-policy", "fast")[0].startswith(
        "--speculative-adaptive-policy: "
    )


def test_a_file_implies_adaptive_and_sets_where_it_starts(write) -> None:
    path = write(TABLE)
    speculation = read("--speculative-adaptive-config", path)
    assert (speculation.policy, list(speculation.table)) == (Policy.GOODPUT, ["1", "8"])
    assert speculation.usual_steps == 2, "the middle of 0, 1, 2, 4, 6"
    assert (
        read("--speculative-adaptive-config", path, "--speculative-num-steps", "6").num_steps == 6
    )
    three = write({"1": {"candidate_steps": [1, 3, 5, 7]}}, "three.json")
    assert read("--speculative-adaptive-config", three).usual_steps == 3


@pytest.mark.parametrize(
    ("asked", "flag", "policy"),
    [
        ("ema", None, Policy.EMA),
        ("throughput_aware", None, Policy.GOODPUT),
        ("static", None, Policy.GOODPUT),
        ("ema", "goodput", Policy.GOODPUT),
        ("ema", "static", Policy.STATIC),
    ],
)
def test_a_file_may_ask_for_ema_unless_a_flag_names_a_policy(asked, flag, policy, write) -> None:
    arguments = ["--speculative-adaptive-config", write({**TABLE, "strategy": asked})]
    if flag is not None:
        arguments += ["--speculative-adaptive-policy", flag]
    assert read(*arguments).policy is policy


def test_a_start_outside_the_table_is_refused_with_those_inside(write) -> None:
    path = write(TABLE)
    problem = "num_steps 3 is in no entry of the table: use one of"
    start = ("--speculative-num-steps", "3")
    assert refusal("--speculative-adaptive-config", path, *start) == [
        f"{path}: {problem} [0, 1, 2, 4, 6]"
    ]
    (default,) = refusal("--speculative-adaptive", "--speculative-num-steps", "4")
    assert default.endswith(
        "--speculative-num-steps 4 is in no entry of the table: use one of [0, 1, 2, 3, 5, 7]"
    )


def test_mistakes_of_file_and_flags_are_reported_together(write) -> None:
    path = write({"candidate_steps": [1, 3], "ema_alpha": 2})
    sentences = refusal("--speculative-adaptive-config", path, "--port", "-1")
    assert [sentence.partition(": ")[0] for sentence in sentences] == [path, path, "--port"]
    assert sentences[0].startswith(f"{path}: ema_alpha: input should be less than or equal to 1")
    assert '{"1": {"candidate_steps": [1, 3], "ema_alpha": 2}}' in sentences[1]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{", "is not valid JSON: Expecting property name"),
        ("[" * 100_000, "is not valid JSON"),
        ('{"1": {}, "1": {}}', ": contains 1 twice; correct the file"),
        ("[]", "document: must be an object such as"),
    ],
    ids=["text", "depth", "key twice", "list"],
)
def test_a_file_that_is_no_table_is_refused_by_its_path(text, part, write) -> None:
    path = write(text)
    (sentence,) = refusal("--speculative-adaptive-config", path)
    assert sentence.startswith(f"{path}: ")
    assert part in sentence


def test_a_file_that_bounds_what_ngram_verifies_is_refused(write) -> None:
    path = write({"1": {"candidate_steps": [1, 3], "verify_tokens": 1}})
    (sentence,) = refusal("--speculative-adaptive-config", path)
    assert "verify_tokens 1 of entry 1 is for a draft model alone" in sentence


def test_a_file_that_is_not_there_is_refused_by_its_path(tmp_path) -> None:
    (sentence,) = refusal("--speculative-adaptive-config", str(tmp_path / "none.json"))
    assert sentence.startswith(f"{tmp_path}/none.json: cannot be read: No such file")


def boot(write, **speculation: object) -> str:
    document = {"model": {"path": "/models/m"}, "speculation": {"algorithm": "NGRAM"} | speculation}
    return str(write(document, "boot.json"))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{", "is not valid JSON: Expecting property name"),
        ("[" * 100_000, "is not valid JSON: "),
        ('{"model": {"path": "a", "path": "b"}}', " contains model.path twice; correct the file"),
        ("[]", "does not contain a JSON object; write one, such as"),
    ],
    ids=["text", "depth", "key twice", "list"],
)
def test_a_file_that_is_no_boot_file_is_refused_by_its_path(text, part, write) -> None:
    path = write(text, "boot.json")
    with pytest.raises(ConfigurationError) as refused:
        parse_flags(["--boot", path])
    assert str(refused.value).startswith(f"boot file {path} ")
    assert part in str(refused.value)


def test_a_boot_file_that_is_not_there_is_refused_by_its_path(tmp_path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"none\.json cannot be read: No such file .*--boot"
    ):
        parse_flags(["--boot", str(tmp_path / "none.json")])


def test_flags_win_over_the_boot_file(write) -> None:
    static = boot(write, policy="static", table={"1": {"candidate_steps": [3]}})
    adaptive = parse_flags(["--boot", static, "--speculative-adaptive"]).speculation
    assert (adaptive.policy, list(adaptive.table)) == (Policy.GOODPUT, ["1"])
    config = ["--boot", static, "--speculative-adaptive-config", write(TABLE)]
    replaced = parse_flags(config).speculation
    assert (list(replaced.table), replaced.usual_steps) == (["1", "8"], 2)
    named = boot(write, policy="ema")
    assert parse_flags(["--boot", named, "--speculative-adaptive"]).speculation.policy is Policy.EMA


@pytest.mark.parametrize("way", ["table", "table_path"])
def test_a_boot_file_without_a_start_has_the_middle_of_its_table(way, write) -> None:
    table = TABLE if way == "table" else write(TABLE)
    speculation = parse_flags(["--boot", boot(write, **{way: table})]).speculation
    assert (speculation.usual_steps, speculation.policy) == (2, Policy.STATIC)


def test_a_bad_table_in_the_boot_file_is_refused_once(write) -> None:
    table = {"1": {"candidate_steps": [1, -1]}}
    with pytest.raises(ConfigurationError) as refused:
        parse_flags(["--boot", boot(write, table=table)])
    assert str(refused.value).startswith("speculation.table.1.candidate_steps[1]: ")
    assert "\n" not in str(refused.value)


def test_plain_decoding_takes_no_table(write) -> None:
    arguments = ["--model-path", "/models/m", "--speculative-adaptive-config", write(TABLE)]
    with pytest.raises(
        ConfigurationError,
        match="algorithm NONE does not draft: remove --speculative-adaptive-config",
    ):
        parse_flags(arguments)


def test_sglangs_nextn_is_mtp_with_shallow_candidates() -> None:
    model = ("--model-path", "/models/m", "--speculative-algorithm", "NEXTN")
    speculation = parse_flags([*model, "--speculative-adaptive"]).speculation
    assert (speculation.algorithm, speculation.draft_path) == ("MTP", None)
    assert speculation.entries["1"].candidate_steps == (0, 1, 2, 3)
    named = parse_flags([*model, "--speculative-draft-model-path", "/models/nextn"]).speculation
    assert (named.draft_path, named.usual_steps) == ("/models/nextn", 3)


def test_errors_of_flags_name_the_flags() -> None:
    eagle3 = ["--model-path", "/m", "--speculative-algorithm", "EAGLE3", "--port", "99999"]
    with pytest.raises(ConfigurationError) as refused:
        parse_flags(eagle3)
    assert sorted(str(refused.value).splitlines()) == [
        "--port: input should be less than or equal to 65535; got 99999",
        "speculation: algorithm EAGLE3 needs --speculative-draft-model-path: add it",
    ]
    with pytest.raises(ConfigurationError, match="add --model-path FOLDER, or --boot FILE"):
        parse_flags([])


def test_errors_of_a_boot_file_name_its_fields(write) -> None:
    path = write({"model": {"path": "/m"}, "server": {"port": 99999}}, "boot.json")
    with pytest.raises(ConfigurationError, match=r"^server\.port: input should be"):
        parse_flags(["--boot", path])


def test_a_command_that_does_not_exist_is_refused_with_those_that_do(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_flags(["chek"])
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert "{chat,check,kernels,drain,undrain,fetch}" in error
    assert error.endswith("error: unrecognized arguments: chek; see --help\n")
    assert len(error.splitlines()) == 5


def test_help_lists_the_commands_and_version_is_that_of_the_package(capsys) -> None:
    with pytest.raises(SystemExit):
        parse_flags(["--help"])
    shown = capsys.readouterr().out.partition("commands (")[2]
    assert set(re.findall(r"^  ([a-z]+)[ ,]", shown, re.M)) == set(_COMMANDS) - {"undrain"}
    assert "\n  drain, undrain  " in shown
    with pytest.raises(SystemExit) as ended:
        parse_flags(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"specdecode-engine {version('specdecode-engine')}\n"


def test_help_names_every_algorithm_there_is(capsys) -> None:
    with pytest.raises(SystemExit):
        parse_flags(["--help"])
    shown_help = " ".join(capsys.readouterr().out.split())
    shown = (
        shown_help.partition("--speculative-algorithm SPECULATIVE_ALGORITHM ")[2]
        .partition("(one of ")[2]
        .partition("; boot")
    )
    assert set(shown[0].split(", ")) == set(Algorithm)


def test_help_describes_each_flag_by_its_field_of_the_boot_file(capsys) -> None:
    with pytest.raises(SystemExit):
        parse_flags(["--help"])
    shown_help = " ".join(capsys.readouterr().out.split())
    assert "Port of the API; 0 selects a free port (boot file: server.port)." in shown_help
    assert (
        "Policy that chooses the draft steps (one of static, ema, goodput; boot file:" in shown_help
    )


def test_flags_of_ngram_are_named_as_in_sglang() -> None:
    speculation = parse_flags(
        [
            *NGRAM,
            *("--speculative-num-draft-tokens", "12"),
            *("--speculative-ngram-source", "trie"),
            *("--speculative-ngram-max-trie-depth", "9"),
            *("--speculative-ngram-min-bfs-breadth", "2"),
            *("--speculative-ngram-max-bfs-breadth", "4"),
            *("--speculative-ngram-match-type", "PROB"),
            *("--speculative-ngram-capacity", "5000"),
        ]
    ).speculation
    assert (speculation.num_steps, speculation.num_draft_tokens) == (11, 12)
    ngram = speculation.ngram
    assert (ngram.source, ngram.depth, ngram.min_breadth, ngram.max_breadth) == ("trie", 9, 2, 4)
    assert (ngram.match, ngram.capacity, ngram.shortest_match) == ("PROB", 5000, 1)
    tree = parse_flags(
        [*NGRAM, "--speculative-num-draft-tokens", "12", "--speculative-eagle-topk", "4"]
    )
    assert tree.speculation.num_steps == 3


def test_a_fallback_takes_the_settings_of_ngram() -> None:
    flags = ["--model-path", "/m", "--speculative-algorithm", "NEXTN"]
    trie = ["--speculative-fallback", "NGRAM", "--speculative-ngram-source", "trie"]
    speculation = parse_flags([*flags, *trie]).speculation
    assert (speculation.algorithm, speculation.fallback) == ("MTP", "NGRAM")
    assert speculation.ngram.source == "trie"
    with pytest.raises(ConfigurationError, match="NGRAM has no draft model to stand in for"):
        parse_flags([*NGRAM, "--speculative-fallback", "NGRAM"])
    with pytest.raises(ConfigurationError, match="input should be 'NGRAM'"):
        parse_flags([*flags, "--speculative-fallback", "EAGLE"])


def test_disabling_flags_and_graph_sizes_reach_the_boot_file() -> None:
    off = parse_flags(
        [*NGRAM, "--disable-overlap-schedule", "--disable-radix-cache", "--disable-cuda-graph"]
    )
    assert (off.scheduling.overlap, off.memory.prefix_cache, off.graphs.mode) == (
        False,
        False,
        "off",
    )
    sizes = parse_flags([*NGRAM, "--cuda-graph-bs", "1", "4"])
    assert sizes.graphs.batch_sizes == (1, 4)
    assert parse_flags([*NGRAM, "--cuda-graph-bs"]).graphs.batch_sizes == ()


def test_further_names_of_sglang_are_understood() -> None:
    trie = ("--speculative-ngram-source", "trie", "--speculative-ngram-branch-length", "20")
    ngram = read(*trie, "--speculative-ngram-min-match-window-size", "2").ngram
    assert (ngram.max_depth, ngram.min_match) == (20, 2)
    dflash = ["--model-path", "/m", "--speculative-algorithm", "DFLASH"]
    dflash += ["--speculative-draft-model-path", "/d", "--speculative-dflash-block-size", "16"]
    speculation = parse_flags(dflash).speculation
    assert (speculation.num_steps, speculation.num_draft_tokens) == (15, 16)
    both = parse_flags([*dflash, "--speculative-num-draft-tokens", "16"])
    assert both.speculation == speculation
    assert refusal(
        "--speculative-dflash-block-size", "16", "--speculative-num-draft-tokens", "8"
    ) == [
        "--speculative-dflash-block-size 16: --speculative-num-draft-tokens is 8; "
        "remove one of them"
    ]


def test_ranks_are_named_as_in_vllm_and_sglang() -> None:
    assert parse_flags(NGRAM).parallelism.tensor == 1
    for flag in ("--tensor-parallel-size", "--tp-size"):
        assert parse_flags([*NGRAM, flag, "3"]).parallelism.tensor == 3
    assert refusal("--tp-size", "2", "--tensor-parallel-size", "4") == [
        "--tensor-parallel-size 4: --tp-size is 2; remove one of them"
    ]
    assert refusal("--tp-size", "17") == [
        "--tensor-parallel-size: input should be less than or equal to 16; got 17"
    ]


def test_what_does_not_run_with_several_ranks_is_refused_by_the_names_of_flags() -> None:
    assert refusal("--tp-size", "2", "--engine-process", "off") == [
        "--engine-process: off would leave no process for the ranks, and --tensor-parallel-size "
        "is 2: use auto or on"
    ]
    frozen = ["--speculative-algorithm", "FROZEN_KV_MTP", "--speculative-draft-model-path", "/d"]
    (sentence,) = refusal(*frozen, "--tensor-parallel-size", "2")
    assert sentence.startswith("--speculative-algorithm: the draft of FROZEN_KV_MTP reads all keys")
    assert "--tensor-parallel-size is 2: use 1, or another algorithm" in sentence


def test_flags_of_sglang_without_a_counterpart_are_refused_together_with_what_to_do() -> None:
    window = (
        "layers of a draft have the windows that its config.json states: remove the flag, or set "
        "use_swa and sliding_window there"
    )
    corpus = (
        "NGRAM reads no texts of files: remove the flag; with --speculative-ngram-scope model the "
        "texts of other requests are read too"
    )
    remedies = {
        "--speculative-draft-window-size": window,
        "--speculative-dflash-draft-window-size": window,
        "--speculative-ngram-external-corpus-path": corpus,
        "--speculative-ngram-external-sam-budget": corpus,
        "--speculative-ngram-external-corpus-max-tokens": corpus,
        "--speculative-ngram-max-match-window-size": "a match may be as long as the trie is deep: "
        "use --speculative-ngram-max-trie-depth",
    }
    arguments = [part for flag in remedies for part in (flag, "12")]
    assert refusal(*arguments) == [f"{flag} 12: {remedy}" for flag, remedy in remedies.items()]
    assert len(refusal(*arguments, "--speculative-num-steps", "99")) == len(remedies) + 1


def test_the_management_port_is_private_unless_a_boot_file_sets_it(write) -> None:
    model = ["--model-path", "/m", "--host", "0.0.0.0"]

    def address(*flags: str) -> tuple[str, int] | None:
        return parse_flags([*model, *flags]).server.management_address

    assert address() == ("127.0.0.1", 8001)
    assert address("--management-port", "9001") == ("127.0.0.1", 9001)
    both = ("--management-port", "9001", "--management-host", "10.0.0.1")
    assert address(*both) == ("10.0.0.1", 9001)
    assert address("--management-host", "10.0.0.1") == ("10.0.0.1", 8001)
    assert address("--management-port", "8000") is None
    assert address("--management-port", "0") is None
    pod = write({"server": {"management_port": 8001}}, "boot.json")
    assert address("--boot", pod) == ("0.0.0.0", 8001)
    assert address("--boot", pod, "--management-port", "9001") == ("0.0.0.0", 9001)
    hand = write({"server": {"port": 8080}}, "hand.json")
    assert address("--boot", hand) == ("127.0.0.1", 8001)


def test_the_default_management_port_is_not_shared_by_chance() -> None:
    with pytest.raises(ConfigurationError, match=r"is 8001.*set --management-port to another port"):
        parse_flags(["--model-path", "/m", "--port", "8001"])
    shared = parse_flags(["--model-path", "/m", "--port", "8001", "--management-port", "8001"])
    assert shared.server.management_address is None
