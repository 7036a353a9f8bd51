"""What a draft of speculators states of its target and its use."""

import json
from pathlib import Path
from typing import Any

import pytest

from specdecode_engine.model.config_file import ConfigError
from specdecode_engine.model.speculators import proposed_draft_steps, verifier_warning

TARGET = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
}
VERIFIER = {"name_or_path": "meta-llama/Llama-3.1-8B", "architectures": ["LlamaForCausalLM"]}


def write(folder: Path, keys: dict[str, Any]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(keys))
    return folder


def warning(
    tmp_path: Path, verifier: dict[str, Any], target: dict[str, Any], name: str = "served"
) -> str | None:
    draft = write(tmp_path / "draft", {"speculators_config": {"verifier": verifier}})
    return verifier_warning(draft, write(tmp_path / name, {**TARGET, **target}))


@pytest.mark.parametrize(
    ("verifier", "target", "name"),
    [
        (VERIFIER, {}, "served"),
        ({**VERIFIER, "architectures": ["Qwen3ForCausalLM"]}, {}, "llama-3.1-8b"),
        (
            {**VERIFIER, "architectures": ["Qwen3ForCausalLM"]},
            {"_name_or_path": "models/Llama-3.1-8B"},
            "served",
        ),
        ({"name_or_path": None, "hidden_size": 12}, {}, "served"),
    ],
    ids=["nothing else differs", "folder of the name", "name in config.json", "no name"],
)
def test_a_verifier_that_may_be_the_target_causes_no_warning(
    tmp_path: Path, verifier: dict[str, Any], target: dict[str, Any], name: str
) -> None:
    assert warning(tmp_path, verifier, target, name) is None


def test_another_verifier_is_named_with_what_differs(tmp_path: Path) -> None:
    verifier = {**VERIFIER, "hidden_size": 2048, "num_hidden_layers": 16}
    found = warning(tmp_path, verifier, {"architectures": ["MistralForCausalLM"]})
    assert found is not None
    assert found.startswith("the draft draft was made for meta-llama/Llama-3.1-8B, which has ")
    assert "architectures ['LlamaForCausalLM'] instead of ['MistralForCausalLM']" in found
    assert "hidden_size 2048 instead of 4096, num_hidden_layers 16 instead of 32" in found


def test_the_text_model_of_a_wrapper_is_compared(tmp_path: Path) -> None:
    text = {"hidden_size": 2048, "vocab_size": 128256}
    target = {"text_config": text, "hidden_size": None}
    keys = {name: value for name, value in {**TARGET, **target}.items() if value is not None}
    draft = write(
        tmp_path / "draft",
        {"speculators_config": {"verifier": {**VERIFIER, "hidden_size": 4096}}},
    )
    found = verifier_warning(draft, write(tmp_path / "served", keys))
    assert found is not None
    assert "hidden_size 4096 instead of 2048" in found


def test_a_draft_of_other_writers_states_nothing(tmp_path: Path) -> None:
    draft = write(tmp_path / "draft", TARGET)
    assert verifier_warning(draft, write(tmp_path / "served", TARGET)) is None
    assert proposed_draft_steps(draft) is None


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
    tmp_path: Path, keys: dict[str, Any], steps: int | None
) -> None:
    draft = write(tmp_path / "draft", {"speculators_config": keys})
    assert proposed_draft_steps(draft) == steps


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ("greedy", "proposal_methods is 'greedy'; it must be a list of objects"),
        ([{"speculative_tokens": 0}], "speculative_tokens is 0; it must be a positive integer"),
    ],
    ids=str,
)
def test_malformed_proposals_are_refused(tmp_path: Path, methods: object, message: str) -> None:
    draft = write(tmp_path / "draft", {"speculators_config": {"proposal_methods": methods}})
    with pytest.raises(ConfigError, match=message):
        proposed_draft_steps(draft)
