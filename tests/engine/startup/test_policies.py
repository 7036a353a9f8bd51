"""The policy that is made, the table it is given, and an engine that adapts with both."""

import json
import logging

import pytest

from specdecode_api.boot import EngineBoot, SpeculationBoot
from specdecode_api.metrics.core import NUM_STEPS
from specdecode_api.speculation import Policy
from specdecode_engine.adaptive.ema import EmaPolicy
from specdecode_engine.adaptive.policy import StaticPolicy
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.cli.flags import parse_flags
from specdecode_engine.engine import EngineCore
from specdecode_engine.process import ConfigurationError
from specdecode_engine.startup.build import build_core
from specdecode_engine.startup.config import draft_shapes, resolve_speculation
from specdecode_engine.startup.policies import make_policy, range_table

TABLE = {
    "2": {"candidate_steps": [0, 2]},
    "1": {"candidate_steps": [4, 1]},
    "warmup_batches": 0,
    "update_interval": 1,
    "ema_alpha": 0.5,
}


def make_boot(checkpoints, draft, **speculation: object) -> EngineBoot:
    drafting = {"algorithm": "STANDALONE", "draft_path": str(draft)}
    return EngineBoot.model_validate(
        {
            "model": {"path": str(checkpoints.target), "dtype": "float64"},
            "speculation": drafting | speculation,
            "memory": {"page_size": 4},
            "scheduling": {"max_running_requests": 2},
            "device": "cpu",
        }
    )


def ngram(**fields: object) -> SpeculationBoot:
    return SpeculationBoot.model_validate({"algorithm": "NGRAM", "num_steps": 3, **fields})


def start(folder, **fields: object) -> EngineBoot:
    """Read a boot file as the engine does when it starts."""
    file = folder / "boot.json"
    document = {"model": {"path": "/models/m"}, "speculation": {"algorithm": "NGRAM", **fields}}
    file.write_text(json.dumps(document))
    return parse_flags(["--boot", str(file)], log_warnings=True)


def test_each_policy_is_made() -> None:
    made = {}
    for policy in Policy:
        speculation = ngram(policy=policy)
        table = range_table(speculation.entries, speculation.policy)
        made[policy] = make_policy(speculation, table, (8, 64))
        assert table is None or made[policy].table is table
        assert made[policy].decide(1, 0).num_steps == 3
    assert isinstance(made[Policy.STATIC], StaticPolicy)
    assert isinstance(made[Policy.EMA], EmaPolicy)
    assert made[Policy.EMA].decide(5, 0).range_start == 8, "padded to a size that is captured"


def test_plain_decoding_stays_plain_under_every_policy() -> None:
    for policy in Policy:
        made = make_policy(SpeculationBoot(policy=policy), None)
        assert made.decide(1, 0).num_steps == 0


def test_a_table_becomes_ranges_ascending() -> None:
    entries = ngram(table={"8": {"candidate_steps": [3, 0], "ema_alpha": 0.5}}).entries
    table = range_table(entries, Policy.GOODPUT)
    assert table is not None
    (entry,) = table.ranges
    assert (entry.lower_bound, entry.candidate_steps, entry.ema_alpha) == (8, (0, 3), 0.5)
    assert entry.down_hysteresis == -0.25
    assert range_table({}, Policy.STATIC) is None


def test_sizes_and_shapes_know_every_depth_of_a_default_table() -> None:
    assert list(draft_shapes(*resolve_speculation(ngram(policy="ema"), None))) == [0, 1, 3, 5, 7]
    assert list(draft_shapes(*resolve_speculation(ngram(), None))) == [0, 3]


def test_a_table_is_loaded_from_where_it_is_given(tmp_path) -> None:
    path = tmp_path / "table.json"
    path.write_text("\ufeff" + json.dumps(TABLE), encoding="utf-8")
    read = start(tmp_path, num_steps=4, table_path=str(path)).speculation
    assert {key: entry.candidate_steps for key, entry in read.entries.items()} == {
        "1": (4, 1),
        "2": (0, 2),
    }
    written = {key: entry.model_dump() for key, entry in read.entries.items()}
    assert start(tmp_path, num_steps=4, table=written).speculation.entries == read.entries
    with pytest.raises(
        ConfigurationError, match=r"table.json: num_steps 3 .* use one of \[0, 1, 2, 4\]"
    ):
        start(tmp_path, num_steps=3, table_path=str(path))
    assert list(start(tmp_path, policy="ema").speculation.entries) == ["1", "8", "32", "64"]
    assert start(tmp_path).speculation.entries == {}


def test_doubts_about_a_table_are_logged_at_start(tmp_path, caplog) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(TABLE | {"strategy": "throughput_aware"}))
    with caplog.at_level(logging.WARNING):
        start(tmp_path, num_steps=1, policy="ema", table_path=str(path))
    assert "speculation table: strategy: names policy goodput, but policy ema" in caplog.text


def answer(core: EngineCore) -> tuple[list[int], list[int]]:
    """Return the tokens of a request and the depths after each step."""
    sampling = SamplingParams(seed=3, temperature=1.0, max_tokens=60, ignore_eos=True)
    core.submit(Request("r", (3, 14, 15), sampling))
    tokens, depths = [], []
    while core.has_work():
        tokens += [token for output in core.step() for token in output.token_ids]
        depths.append(int(core.snapshot()[NUM_STEPS]))
    return tokens, depths


def test_an_engine_adapts_in_the_table_of_a_file(checkpoints, tmp_path) -> None:
    """A draft that is the target raises the depth; sizes, shapes and policy know all of them."""
    path, file = tmp_path / "table.json", tmp_path / "boot.json"
    path.write_text(json.dumps(TABLE))
    file.write_text(make_boot(checkpoints, checkpoints.target, policy="ema").model_dump_json())
    flags = ["--speculative-adaptive-config", str(path), "--speculative-num-steps", "1"]
    core = build_core(parse_flags(["--boot", str(file), *flags]))
    assert list(core.shapes) == [0, 1, 2, 4]
    assert core.facts["max_draft_tokens"] == 5
    _, depths = answer(core)
    assert depths == sorted(depths)
    assert set(depths) == {1, 4}
    assert [state.num_steps for state in core.scheduler.drafting.policy.states()] == [4, 2]


def test_an_engine_that_adapts_gives_the_text_of_one_that_does_not_draft(checkpoints) -> None:
    at_once = {"warmup_batches": 0, "update_interval": 1, "ema_alpha": 1.0}
    table = {"1": {"candidate_steps": [0, 1, 4], **at_once}}
    drafting = {"algorithm": "EAGLE3", "table": table, "policy": "ema", "num_steps": 4}
    core = build_core(make_boot(checkpoints, checkpoints.eagle3, **drafting))
    tokens, depths = answer(core)
    plain, _ = answer(
        build_core(make_boot(checkpoints, None, algorithm="NONE", draft_path=None, policy="ema"))
    )
    assert tokens == plain
    assert len(tokens) == 60
    assert set(depths) == {0, 1, 4}, "a random head is seldom right: it falls, and probes"


def test_a_bad_file_is_refused_before_anything_is_loaded(tmp_path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: Is a directory"):
        start(tmp_path, num_steps=1, table_path=str(tmp_path))
