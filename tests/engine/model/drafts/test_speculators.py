"""What a draft of speculators states of its target and its use."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from specdecode_api.boot import EngineBoot
from specdecode_engine.cli.check.command import as_text
from specdecode_engine.model.checkpoint.config_file import ConfigError, ConfigFile
from specdecode_engine.model.drafts.speculators import Verifier, proposed_draft_steps
from specdecode_engine.model.target.config import LlamaConfig
from specdecode_engine.serve.openai.stop_tokens import StopTokens
from specdecode_engine.startup.build import build_core
from specdecode_engine.startup.model_check import CheckOptions, check_pair
from tests.engine.checkpoints import Checkpoints

LLAMA = "LlamaForCausalLM"
VERIFIER = {"name_or_path": "meta-llama/Llama-3.1-8B", "architectures": [LLAMA]}


@pytest.fixture
def target(tmp_path: Path, config: Any) -> LlamaConfig:
    """A Llama of 4 layers, 12 wide."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    return LlamaConfig.load(tmp_path)


def opened(section: dict[str, Any]) -> ConfigFile:
    return ConfigFile(Path("draft/config.json"), {"speculators_config": section})


def warning(verifier: dict[str, Any], target: LlamaConfig, name: str = "served") -> str | None:
    read = Verifier.read(opened({"verifier": verifier}))
    return None if read is None else read.warning(Path("models") / name, target)


@pytest.mark.parametrize(
    ("verifier", "name"),
    [
        (VERIFIER, "served"),
        ({"name_or_path": "some/model"}, "served"),
        ({**VERIFIER, "architectures": ["Qwen3ForCausalLM"]}, "llama-3.1-8b"),
        ({**VERIFIER, "hidden_size": 12, "num_hidden_layers": 4}, "served"),
        ({"name_or_path": None, "hidden_size": 24}, "served"),
    ],
    ids=["same architecture", "name alone", "folder of the name", "same sizes", "no name"],
)
def test_a_verifier_that_may_be_the_target_causes_no_warning(
    target: LlamaConfig, verifier: dict[str, Any], name: str
) -> None:
    assert warning(verifier, target, name) is None


def test_another_verifier_is_named_with_what_differs(target: LlamaConfig) -> None:
    verifier = {**VERIFIER, "architectures": ["Qwen3ForCausalLM"], "hidden_size": 24}
    found = warning({**verifier, "vocab_size": 31}, target)
    assert found is not None
    assert found.startswith("the draft was made for meta-llama/Llama-3.1-8B, which has ")
    assert "architecture Qwen3ForCausalLM instead of LlamaForCausalLM, hidden_size 24" in found
    assert "vocab_size" not in found


def test_a_draft_of_other_writers_states_nothing() -> None:
    config = ConfigFile(Path("draft/config.json"), {"hidden_size": 12})
    assert Verifier.read(config) is None
    assert proposed_draft_steps(config) is None


def test_the_engine_reports_warning_and_proposal(
    checkpoints: Checkpoints, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log and /server_info have them; the head is served all the same."""
    draft = Path(shutil.copytree(checkpoints.eagle3, tmp_path / "head"))
    keys = json.loads((draft / "config.json").read_text())
    keys["speculators_config"] = {
        "verifier": {**VERIFIER, "architectures": ["Qwen3ForCausalLM"]},
        "proposal_methods": [{"speculative_tokens": 5}],
    }
    (draft / "config.json").write_text(json.dumps(keys))
    boot = {
        "model": {"path": str(checkpoints.target)},
        "speculation": {"algorithm": "EAGLE3", "draft_path": str(draft), "num_steps": 3},
        "device": "cpu",
    }
    facts = build_core(EngineBoot.model_validate(boot)).facts
    pair = check_pair(checkpoints.target, draft, CheckOptions())
    assert pair.draft is not None
    assert pair.draft.warning == facts["draft_warning"]
    assert f"  warning         {pair.draft.warning}" in as_text(pair, StopTokens())
    assert str(facts["draft_warning"]).startswith("the draft was made for meta-llama/Llama-3.1-8B")
    assert facts["proposed_draft_steps"] == 5
    assert str(facts["draft_warning"]) in caplog.text


METHODS = [
    {"proposal_type": "tree", "speculative_tokens": 7},
    {"proposal_type": "greedy", "speculative_tokens": 5},
]


@pytest.mark.parametrize(
    ("keys", "steps"),
    [
        ({"proposal_methods": METHODS, "default_proposal_method": "greedy"}, 5),
        ({"proposal_methods": METHODS}, 7),
        ({"proposal_methods": []}, None),
        ({"proposal_methods": [{"proposal_type": "greedy"}]}, None),
        ({}, None),
    ],
    ids=str,
)
def test_draft_steps_are_those_of_the_default_method(
    keys: dict[str, Any], steps: int | None
) -> None:
    assert proposed_draft_steps(opened(keys)) == steps


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ("greedy", "proposal_methods is 'greedy'; it must be a list of objects"),
        ([{"speculative_tokens": 0}], "speculative_tokens is 0; it must be a positive integer"),
    ],
    ids=str,
)
def test_malformed_proposals_are_refused(methods: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        proposed_draft_steps(opened({"proposal_methods": methods}))
