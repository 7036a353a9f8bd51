"""Mixtures of old and new rotary keys are read as AutoConfig does, or refused with both values."""

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from specdecode_engine.model.checkpoint.config_file import CheckpointError, ConfigFile
from specdecode_engine.model.drafts.eagle_config import Eagle3Config
from specdecode_engine.model.implementations import read_config
from specdecode_engine.model.layers.rope import RopeConfig, parse_local_rope, parse_rope
from specdecode_engine.model.target.config import LlamaConfig
from specdecode_engine.model.target.families import FAMILIES
from tests.engine.checkpoints import Checkpoints
from tests.engine.model.layers.test_rope import KINDS

BASE: dict[str, Any] = {
    "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8,
    "max_position_embeddings": 128,
}  # fmt: skip
TYPES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "mistral": "MistralForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
}
YARN = {"rope_type": "yarn", **KINDS["yarn"]}
PLAIN = {"rope_type": "default", "rope_theta": 1e6}
REST = ("rope_type", "rope_theta")


def read(keys: dict[str, Any], model_type: str = "llama") -> RopeConfig:
    config = ConfigFile(Path("config.json"), BASE | copy.deepcopy(keys))
    return parse_rope(config, 8, FAMILIES[TYPES[model_type]].rope)


def by_transformers(keys: dict[str, Any], model_type: str = "llama") -> dict[str, Any]:
    config = AutoConfig.for_model(model_type, **BASE, **copy.deepcopy(keys))
    parameters: dict[str, Any] = config.rope_parameters
    parameters.pop("type", None)
    return parameters


def stated(keys: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """Every number and kind that a config.json states, wherever it does."""
    yield from ((key, keys[key]) for key in ("rope_theta",) if key in keys)
    for section in ("rope_parameters", "rope_scaling"):
        for key, value in (keys.get(section) or {}).items():
            kind = "rope_type" if key == "type" else key
            if (kind, value) != ("rope_type", "default"):
                yield kind, value


MIXTURES = [
    {place: {spelling: kind, **KINDS[kind], **({"rope_theta": 5e5} if inside else {})}, **top}
    for kind in KINDS
    for place, spelling in (("rope_scaling", "type"), ("rope_parameters", "rope_type"))
    for inside in (False, True)
    for top in ({}, {"rope_theta": 5e5})
]


@pytest.mark.parametrize("model_type", TYPES)
def test_one_section_is_read_as_transformers_does(model_type: str) -> None:
    assert len(MIXTURES) == 48
    for keys in MIXTURES:
        ours, theirs = read(keys, model_type), by_transformers(keys, model_type)
        assert dict(ours.parameters) == theirs, keys
        assert (ours.kind, ours.theta) == (theirs["rope_type"], theirs["rope_theta"])


@pytest.mark.parametrize("model_type", TYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_scaling_replaces_parameters_that_it_repeats(kind: str, model_type: str) -> None:
    scaling: dict[str, Any] = {"rope_type": kind, **KINDS[kind]}
    theta: dict[str, Any] = {"rope_theta": 1e6}
    repeated: list[Any] = [PLAIN, theta, scaling | theta, {}, None]
    for parameters in repeated:
        inside: dict[str, Any] = {"rope_scaling": scaling | theta}
        for extra in (theta, inside):
            keys: dict[str, Any] = {"rope_parameters": parameters, "rope_scaling": scaling, **extra}
            found = read(keys, model_type)
            assert dict(found.parameters) == by_transformers(keys, model_type), keys
            assert (found.kind, found.theta) == (kind, 1e6)


@pytest.mark.parametrize("seed", range(2))
def test_drawn_mixtures_are_refused_when_a_value_would_be_lost(seed: int) -> None:
    chance, refused = random.Random(seed), 0
    for _ in range(150):
        model_type = chance.choice([*TYPES])
        keys: dict[str, Any] = {}
        for place in chance.sample(["rope_parameters", "rope_scaling"], chance.choice((1, 2, 2))):
            kind = chance.choice(["default", "yarn", "linear", "llama3"])
            keys[place] = {chance.choice(["type", "rope_type"]): kind, **KINDS[kind]}
            keys[place] |= chance.choice([{}, {"rope_theta": 5e5}, {"rope_theta": 1e6}])
            keys[place] = chance.choice([keys[place], keys[place], {}, None])
        keys |= chance.choice([{}, {"rope_theta": 5e5}, {"rope_theta": 1e6}])
        theirs = by_transformers(keys, model_type)
        lost = [name for name, value in stated(keys) if theirs.get(name) != value]
        if lost:
            refused += 1
            with pytest.raises(CheckpointError, match="write all rotary parameters under"):
                read(keys, model_type)
        else:
            assert dict(read(keys, model_type).parameters) == theirs, keys
    assert 20 < refused < 130


LOST: list[tuple[dict[str, Any], list[str]]] = [
    (
        {"rope_parameters": PLAIN, "rope_scaling": YARN},
        ["rope_parameters.rope_theta", "1000000.0", "10000.0"],
    ),
    (
        {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}},
        ["rope_theta is 10000.0", "500000.0"],
    ),
    (
        {"rope_theta": 1e4, "rope_scaling": {**YARN, "rope_theta": 5e5}},
        ["rope_theta is 10000.0", "500000.0"],
    ),
    (
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0}, "rope_scaling": YARN},
        ["'linear'", "'yarn'"],
    ),
    ({"rope_parameters": {**YARN, "factor": 2.0}, "rope_scaling": YARN}, ["factor is 2.0", "8.0"]),
    (
        {"rope_parameters": {**YARN, "beta_slow": 2.0}, "rope_scaling": YARN},
        ["beta_slow is 2.0", "left out"],
    ),
    (
        {"rope_scaling": {**YARN, "type": "linear"}},
        ["rope_scaling.type is 'linear'", "rope_scaling.rope_type is 'yarn'"],
    ),
    ({"rope_scaling": YARN, "original_max_position_embeddings": 64}, ["is 64", "32"]),
    (
        {"rope_parameters": {"full_attention": PLAIN}},
        ["rope_parameters.full_attention", "one set of parameters"],
    ),
    (
        {"rope_parameters": {"full_attention": PLAIN}, "rope_scaling": YARN},
        ["rope_parameters.full_attention.rope_theta", "10000.0"],
    ),
]


@pytest.mark.parametrize(("keys", "words"), LOST)
def test_a_refusal_has_both_values(keys: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(keys)
    for word in ("config.json", *words):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "word"),
    [
        ({"rope_theta": 5e5}, ""),
        ({"rope_theta": 5e5, "rope_local_base_freq": 500.0}, ""),
        ({"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, ""),
        ({"rope_parameters": {}, "rope_theta": 5e5}, ""),
        ({"rope_parameters": {"full_attention": PLAIN, "sliding_attention": {}}}, ""),
        (
            {
                "rope_parameters": {"full_attention": PLAIN, "sliding_attention": {}},
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            },
            "",
        ),
        (
            {
                "rope_parameters": {"full_attention": PLAIN, "sliding_attention": {}},
                "rope_scaling": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5.0},
            },
            "rope_parameters.full_attention.rope_theta",
        ),
        (
            {
                "rope_parameters": {"full_attention": PLAIN, "sliding_attention": {}},
                "rope_scaling": {"type": "linear", "factor": 8.0},
            },
            "rope_parameters.full_attention.type",
        ),
        (
            {
                "rope_parameters": {"full_attention": PLAIN, "sliding_attention": PLAIN},
                "rope_local_base_freq": 1e4,
            },
            "rope_local_base_freq",
        ),
    ],
)
def test_angles_by_layer_type_are_those_of_transformers(keys: dict[str, Any], word: str) -> None:
    config = ConfigFile(Path("config.json"), BASE | copy.deepcopy(keys))
    if word:
        with pytest.raises(CheckpointError, match=word):
            parse_local_rope(config, 8)
        return
    theirs = by_transformers(keys, "gemma3_text")
    names = ("full_attention", "sliding_attention")
    for ours, name in zip(parse_local_rope(config, 8), names, strict=True):
        assert dict(ours.parameters) == theirs[name]


def test_models_through_transformers_and_drafts_are_refused_alike(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    mixture = {"rope_parameters": PLAIN, "rope_scaling": YARN}
    granite = AutoConfig.for_model("granite", **BASE, vocab_size=64).to_dict()
    granite |= {"architectures": ["GraniteForCausalLM"]}
    head = json.loads((checkpoints.eagle3 / "config.json").read_text())
    target = LlamaConfig.load(checkpoints.target)

    def load(keys: dict[str, Any]) -> RopeConfig:
        (tmp_path / "config.json").write_text(json.dumps(keys))
        is_head = "granite" not in str(keys)
        config = Eagle3Config.load(tmp_path, target) if is_head else read_config(tmp_path)
        return config.rope

    for keys in (granite, head):
        rest = {key: value for key, value in keys.items() if not key.startswith("rope_")}
        with pytest.raises(CheckpointError, match=r"rope_parameters\.rope_theta is 1000000\.0"):
            load(rest | mixture)
        assert load(rest | mixture | {"rope_theta": 1e6}).kind == "yarn"
