"""An EAGLE-3 head finds what it shares with its target; one that does not fit is refused."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specdecode_engine.model.checkpoint.config_file import CheckpointError
from specdecode_engine.model.drafts.eagle import Eagle3Head
from specdecode_engine.model.drafts.eagle_config import Eagle3Config
from specdecode_engine.model.target.config import AuxHiddenStates, LlamaConfig
from specdecode_engine.model.target.llama import Llama

CPU = torch.device("cpu")
IDS = "eagle_aux_hidden_state_layer_ids"

Tensors = dict[str, Tensor]
Config = dict[str, object]


@pytest.fixture
def head_config(config: Config) -> Config:
    """A config.json of a head for the tiny Llama; its context is far too short."""
    own: Config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": 7,
        "max_position_embeddings": 4,
        "eagle_config": {IDS: [0, 1, 3], "use_aux_hidden_state": True},
    }
    return {**config, **own}


Load = Callable[[Config, Tensors], Eagle3Head]


@pytest.fixture
def target(tmp_path: Path, config: Config, tensors: Tensors, write: Any) -> Llama:
    """The tiny Llama, in float64."""
    return Llama.load(write(tmp_path / "t", config, tensors), dtype=torch.float64, device=CPU)


@pytest.fixture
def load(tmp_path: Path, target: Llama, write: Any) -> Load:
    """Write a head and load it for the target."""

    def load(config: Config, tensors: Tensors) -> Eagle3Head:
        return Eagle3Head.load(write(tmp_path / "head", config, tensors), target)

    return load


def test_it_shares_the_target_s_embedding_and_length(
    load: Load, target: Llama, head_config: Config, eagle3_tensors: Tensors
) -> None:
    head = load(head_config, eagle3_tensors)
    assert head.embedding is target.embedding
    assert head.angles.shape[1] == target.context_length == 64
    assert head.config.aux_spec == AuxHiddenStates(layers=(0, 1, 3))


def test_draft_ids_lead_to_target_ids(
    load: Load, head_config: Config, eagle3_tensors: Tensors
) -> None:
    ids = load(head_config, eagle3_tensors).draft_to_target
    assert ids is not None
    assert ids.tolist() == [2, 3, 5, 8, 13, 21, 30]


@pytest.mark.parametrize("stated", [None, 31])
def test_a_head_of_the_whole_vocabulary_needs_no_map(
    load: Load, head_config: Config, eagle3_tensors: Tensors, stated: int | None
) -> None:
    del eagle3_tensors["d2t"], eagle3_tensors["t2d"]
    head_config["draft_vocab_size"] = stated
    eagle3_tensors["lm_head.weight"] = torch.randn(31, 12)
    assert load(head_config, eagle3_tensors).draft_to_target is None


def test_a_head_that_states_no_vocabulary_scores_with_the_target_s(
    load: Load, target: Llama, head_config: Config, eagle3_tensors: Tensors
) -> None:
    for name in ("d2t", "t2d", "lm_head.weight"):
        del eagle3_tensors[name]
    del head_config["draft_vocab_size"]
    assert load(head_config, eagle3_tensors).head.weight is target.head.weight


def test_a_tied_head_scores_with_its_embedding(
    load: Load, head_config: Config, eagle3_tensors: Tensors
) -> None:
    for name in ("d2t", "t2d"):
        del eagle3_tensors[name]
    del head_config["draft_vocab_size"]
    tied = {**head_config, "tie_word_embeddings": True}
    own = {"embed_tokens.weight": torch.randn(31, 12)}
    eagle3_tensors |= own | {"lm_head.weight": own["embed_tokens.weight"].clone()}
    head = load(tied, eagle3_tensors)
    assert head.head.weight is head.embedding
    eagle3_tensors["lm_head.weight"] = torch.randn(31, 12)
    with pytest.raises(CheckpointError, match="differs from the embedding, but config"):
        load(tied, eagle3_tensors)


LAYER_SPELLINGS: list[tuple[Config, AuxHiddenStates]] = [
    ({}, AuxHiddenStates(layers=(1, 3, 4))),
    ({"eagle_config": {IDS: []}}, AuxHiddenStates(layers=(1, 3, 4))),
    ({IDS: [0, 2, 7]}, AuxHiddenStates(layers=(0, 2, 7))),
    ({IDS: [0, 2, 7], "eagle_config": {IDS: [1, 2, 3]}}, AuxHiddenStates(layers=(1, 2, 3))),
    (
        {IDS: [2, 4, 5]},
        AuxHiddenStates(layers=(1, 3, 4)),
    ),  # some writers' default numbers boundaries
    ({"eagle_config": {IDS: [4, 6, 8]}}, AuxHiddenStates(layers=(3, 5, 7))),  # 8 is a boundary
    ({"num_aux_hidden_states": 3}, AuxHiddenStates(layers=(1, 3, 4))),
    ({"eagle_config": {"use_aux_hidden_state": False}}, AuxHiddenStates(final=True)),
    ({"use_aux_hidden_state": False, IDS: []}, AuxHiddenStates(final=True)),
]


@pytest.mark.parametrize(("keys", "aux_spec"), LAYER_SPELLINGS, ids=str)
def test_layers_are_read_in_every_spelling(
    tmp_path: Path,
    config: Config,
    head_config: Config,
    write: Any,
    keys: Config,
    aux_spec: AuxHiddenStates,
) -> None:
    del head_config["eagle_config"]
    deep = LlamaConfig.load(write(tmp_path / "t", {**config, "num_hidden_layers": 8}, {}))
    folder = write(tmp_path / "h", {**head_config, **keys}, {})
    assert Eagle3Config.load(folder, deep).aux_spec == aux_spec


REFUSED_CONFIGS: list[tuple[Config, str]] = [
    ({"architectures": ["LlamaForCausalLM"]}, "an EAGLE-3 head has LlamaForCausalLMEagle3"),
    ({"num_hidden_layers": 2}, "lacks layers.1.input_layernorm.weight"),
    ({"num_hidden_layers": 0}, "num_hidden_layers is 0; it must be a positive integer"),
    ({"norm_before_fc": True, "fc_norm": True}, "fc_norm is True; norm_before_fc is true too"),
    ({"use_aux_hidden_state": False, "fc_norm": True}, "fc_norm is True; use_aux_hidden_state is"),
    ({"use_aux_hidden_state": False, "hidden_size": 24}, "hidden_size is 24; use_aux_hidden_state"),
    ({"tie_word_embeddings": True}, "tie_word_embeddings is True; an embedding of 31 tokens"),
    ({"logit_scale": 0.0}, "logit_scale is 0.0; it must be positive and finite"),
    ({"sliding_window": "all"}, "sliding_window is 'all'; it must be a positive integer"),
    ({"use_sliding_window": True}, "sliding_window is missing; it must be a positive integer"),
    ({"layer_types": ["sliding_attention"]}, "sliding_window is missing; it must be"),
    ({"layer_types": ["linear_attention"]}, "layer_types is ['linear_attention']; it must name"),
    ({"sliding_window": 8, "layer_types": []}, "layer_types is []; it must name full_attention"),
    ({"qkv_bias": True}, "lacks midlayer.self_attn.k_proj.bias"),
    ({"attention_bias": True}, "midlayer.self_attn.o_proj.bias"),
    ({"mlp_bias": True}, "lacks midlayer.mlp.down_proj.bias"),
    ({"norm_output": "yes"}, "norm_output is 'yes'; it must be true or false"),
    ({"vocab_size": 32}, "vocab_size is 32; the target's is 31"),
    ({"draft_vocab_size": 32}, "draft_vocab_size is 32; vocab_size is only 31"),
    ({"target_hidden_size": 24}, "target_hidden_size is 24; the target's is 12"),
    ({"eagle_config": {}}, f"{IDS} is missing and the usual [1, 1, 0] do not fit; use a head"),
    ({"eagle_config": {IDS: [0, 2, 4]}}, f"eagle_config.{IDS} is [0, 2, 4]; use a head"),
    ({"eagle_config": {IDS: [0, 2, 5]}}, f"eagle_config.{IDS} is [0, 2, 5]; use a head"),
    ({"eagle_config": {IDS: [1, 1, 3]}}, "is [1, 1, 3]; use a head made"),
    ({"eagle_config": {IDS: [-1, 1, 3]}}, "is [-1, 1, 3]; use a head"),
    ({"num_aux_hidden_states": 2}, f"num_aux_hidden_states is 2; {IDS} names 3"),
    ({"eagle_config": {IDS: [1, 3]}}, "fc.weight reads 36 features, but layers [1, 3]"),
    ({"norm_before_fc": True}, "lacks input_norm.weight"),
    ({"fc_norm": True}, "lacks fc_norm.0.weight, fc_norm.1.weight, fc_norm.2.weight"),
    ({"eagle_config": {"use_aux_hidden_state": False}}, "holds, unused, fc.weight"),
]


@pytest.mark.parametrize(("keys", "message"), REFUSED_CONFIGS, ids=lambda value: str(value)[:40])
def test_a_config_is_refused(
    load: Load, head_config: Config, eagle3_tensors: Tensors, keys: Config, message: str
) -> None:
    with pytest.raises(CheckpointError, match=re.escape(message)):
        load({**head_config, **keys}, eagle3_tensors)


@pytest.mark.parametrize(
    ("keys", "windows"),
    [
        ({"sliding_window": 8}, (8, 8)),
        ({"sliding_window": 8, "use_sliding_window": True}, (8, 8)),
        ({"sliding_window": 8, "use_sliding_window": False}, (None, None)),
        ({"sliding_window": None}, (None, None)),
        ({"layer_types": ["full_attention"] * 2}, (None, None)),
        (
            {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
            (8, None),
        ),
    ],
    ids=str,
)
def test_windows_are_the_heads_own(
    tmp_path: Path,
    target: Llama,
    head_config: Config,
    write: Any,
    keys: Config,
    windows: tuple[int | None, ...],
) -> None:
    folder = write(tmp_path / "h", {**head_config, "num_hidden_layers": 2, **keys}, {})
    head = Eagle3Config.load(folder, target.config)
    assert head.sliding_windows == windows
    assert [one.sliding_window for one in head.layer_map.layers] == list(windows)


def test_pickled_weights_are_read_as_weights_only(
    tmp_path: Path, target: Llama, head_config: Config, eagle3_tensors: Tensors, write: Any
) -> None:
    """As the authors publish their heads."""
    stored = Eagle3Head.load(write(tmp_path / "a", head_config, eagle3_tensors), target)
    folder = write(tmp_path / "b", head_config, {})
    (folder / "model.safetensors").unlink()
    torch.save(eagle3_tensors, folder / "pytorch_model.bin")
    pickled = Eagle3Head.load(folder, target)
    assert torch.equal(pickled.layers[0].attention.qkv.plain_weight(), _qkv(stored))
    assert pickled.draft_to_target is not None
    torch.save({**eagle3_tensors, "norm.weight": Unsafe()}, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="holds more than weights"):
        Eagle3Head.load(folder, target)
    del eagle3_tensors["midlayer.hidden_norm.weight"]
    torch.save(eagle3_tensors, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"lacks midlayer\.hidden_norm\.weight"):
        Eagle3Head.load(folder, target)


def _qkv(head: Eagle3Head) -> Tensor:
    return head.layers[0].attention.qkv.plain_weight()


class Unsafe:
    """An object that a pickle of weights does not contain."""


def without(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {n: t for n, t in tensors.items() if n != name}


def adding(**added: Tensor) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, **added}


REFUSED_TENSORS: list[tuple[Callable[[Tensors], Tensors], str]] = [
    (without("midlayer.hidden_norm.weight"), "lacks midlayer.hidden_norm.weight"),
    (without("d2t"), "lacks d2t"),
    (without("lm_head.weight"), "lacks lm_head.weight"),
    (adding(input_norm=torch.zeros(36)), "holds, unused, input_norm"),
    (adding(norm=torch.zeros(1)), "holds, unused, norm"),
    (adding(d2t=torch.zeros(8, dtype=torch.int64)), "d2t is [8] instead of [7]"),
    (adding(d2t=torch.tensor([0, -1, 0, 0, 0, 0, 0])), "d2t does not lead to 7 different"),
    (adding(d2t=torch.full((7,), 25)), "d2t does not lead to 7 different"),
    (adding(t2d=torch.ones(31, dtype=torch.bool)), "t2d marks other ids"),
]


@pytest.mark.parametrize(
    ("change", "message"), REFUSED_TENSORS, ids=[m for _, m in REFUSED_TENSORS]
)
def test_tensors_are_refused(
    load: Load,
    head_config: Config,
    eagle3_tensors: Tensors,
    change: Callable[[Tensors], Tensors],
    message: str,
) -> None:
    with pytest.raises(CheckpointError, match=re.escape(message)):
        load(head_config, change(eagle3_tensors))


def test_a_head_of_another_width_needs_its_own_embedding(
    tmp_path: Path,
    tensors: Tensors,
    config: Config,
    head_config: Config,
    eagle3_tensors: Tensors,
    write: Any,
) -> None:
    wide = {n: torch.cat((t, t), dim=-1) if t.shape[-1] == 12 else t for n, t in tensors.items()}
    wide = {n: torch.cat((t, t)) if t.shape[0] == 12 else t for n, t in wide.items()}
    for name in [n for n in wide if "k_proj" in n or "v_proj" in n]:
        wide[name] = wide[name][:12]
    folder = write(tmp_path / "t", {**config, "hidden_size": 24}, wide)
    target = Llama.load(folder, device=CPU)
    eagle3_tensors["fc.weight"] = torch.randn(12, 72)
    with pytest.raises(CheckpointError, match=r"lacks embed_tokens\.weight, and the target's, 24"):
        Eagle3Head.load(write(tmp_path / "h", head_config, eagle3_tensors), target)
    eagle3_tensors["embed_tokens.weight"] = torch.randn(31, 12)
    head = Eagle3Head.load(write(tmp_path / "h", head_config, eagle3_tensors), target)
    assert head.fuse(torch.zeros(2, 72)).shape == (2, 12)
