"""The part of a checkpoint that one of several ranks reads."""

import logging
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from checks.lossless.families import FAMILIES, LATENT, LLAMA, LONGROPE, RECURRENT, make_family
from specdecode_api.report import TerminationReason
from specdecode_engine.model.checkpoint.checkpoint import TensorStore
from specdecode_engine.model.checkpoint.quantized.store import open_checkpoint
from specdecode_engine.model.target.config import LlamaConfig
from specdecode_engine.model.target.llama import llama_shapes
from specdecode_engine.model.target.sharding import CannotDivide, ShardedStore, shard_config
from specdecode_kernels import QuantizedTensor
from tests.engine.checkpoints import Checkpoints, cut_vocabulary
from tests.engine.model.checkpoint.quantized.writers import (
    CASES,
    draw_mxfp4_experts,
    write_quantized,
)
from tests.engine.thread_ranks import Meeting, ThreadRanks

NATIVE = [one for one in FAMILIES if one not in (LONGROPE, LATENT, *RECURRENT)]
VOCAB = 96
ROWS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "sinks", "lm_head.weight")
COLUMNS = ("o_proj.weight", "down_proj.weight")
EXPERTS = {"gate_up_proj": 2, "gate_up_proj_bias": 1, "experts.down_proj": 1}
"""The dimension that is divided of gpt-oss' tensors of all experts."""


@pytest.fixture(scope="module")
def llama(checkpoints: Checkpoints, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of 4 heads, 2 KV heads and a vocabulary that can be divided."""
    return cut_vocabulary(checkpoints.target, tmp_path_factory.mktemp("llama") / "target", VOCAB)


@pytest.fixture(scope="module", params=NATIVE)
def family(
    request: pytest.FixtureRequest, llama: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    if request.param == LLAMA:
        return llama
    return make_family(request.param, llama, tmp_path_factory.mktemp(request.param) / "target")


def stores(folder: Path, size: int) -> list[ShardedStore]:
    """The parts of all ranks."""
    config, source = LlamaConfig.load(folder), open_checkpoint(folder)
    source.check(*llama_shapes(config))
    required, optional = llama_shapes(shard_config(config, size, folder))
    meeting = Meeting(size)
    ranks = [ThreadRanks(rank, size, meeting) for rank in range(size)]
    return [ShardedStore.of(source, required | optional, one) for one in ranks]


def read(store: TensorStore, name: str) -> Tensor:
    stored = store.tensors[name]
    into = torch.full(stored.shape, torch.nan, dtype=stored.dtype)
    store.read(name, into)
    assert torch.equal(store.get(name), into)
    return into


def divided_dimension(name: str) -> int | None:
    for end, dimension in EXPERTS.items():
        if name.endswith(end):
            return dimension
    if any(part in name for part in ROWS):
        return 0
    return 1 if name.endswith(COLUMNS) else None


@pytest.mark.parametrize("size", [2, 4])
def test_parts_of_all_ranks_are_the_whole(family: Path, size: int) -> None:
    whole, parts = open_checkpoint(family), stores(family, size)
    for name, stored in whole.tensors.items():
        found, dimension = [read(one, name) for one in parts], divided_dimension(name)
        expected = whole.get(name)
        if ("k_proj" in name or "v_proj" in name) and size == 4:  # of two KV heads
            assert torch.equal(found[0], found[1]), name
            assert torch.equal(found[2], found[3]), name
            found = found[::2]
        if name.endswith(("o_proj.bias", "down_proj_bias")):
            assert torch.equal(sum(found, torch.zeros(())), expected), name
            assert not any(one.any() for one in found[1:]), name
        elif dimension is None:
            assert all(torch.equal(one, expected) for one in found), name
        else:
            assert torch.equal(torch.cat(found, dimension), expected), name
            assert found[0].shape[dimension] < stored.shape[dimension], name


@pytest.mark.parametrize("size", [2, 4])
def test_the_config_of_a_rank_has_its_sizes(family: Path, size: int) -> None:
    whole = LlamaConfig.load(family)
    config = shard_config(whole, size, family)
    decoder = config.decoder
    assert (decoder.num_attention_heads, decoder.num_key_value_heads) == (4 // size, 1)
    assert decoder.hidden_size == whole.decoder.hidden_size
    assert (config.vocab_size, config.head_rows) == (VOCAB, VOCAB // size)
    assert config.layer_map.entries_per_token * 2 == whole.layer_map.entries_per_token
    inner = whole.decoder.intermediate_size // size
    if config.sparse_mlp is None:
        assert decoder.intermediate_size == inner
    else:
        assert config.sparse_mlp.moe_intermediate_size == inner


def test_one_rank_has_the_whole_config(llama: Path) -> None:
    config = LlamaConfig.load(llama)
    assert shard_config(config, 1, llama) is config


def test_a_vocabulary_that_cannot_be_divided_leaves_the_head_whole(
    checkpoints: Checkpoints,
) -> None:
    parts = stores(checkpoints.target, 2)
    config = shard_config(LlamaConfig.load(checkpoints.target), 2, checkpoints.target)
    assert config.own_head_rows is None
    assert config.head_rows == config.vocab_size == checkpoints.vocab
    assert torch.equal(read(parts[0], "lm_head.weight"), read(parts[1], "lm_head.weight"))


def test_numbers_of_ranks_that_heads_allow_are_named(llama: Path) -> None:
    config = LlamaConfig.load(llama)
    decoder = replace(
        config.decoder, num_attention_heads=28, num_key_value_heads=4, intermediate_size=28
    )
    config = replace(config, decoder=decoder)
    with pytest.raises(CannotDivide) as caught:
        shard_config(config, 8, llama)
    assert str(caught.value) == (
        f"{llama}/config.json: num_attention_heads 28 cannot be divided among 8 ranks; set "
        "parallelism.tensor to 1, 2, 4 or 28"
    )
    assert caught.value.reason is TerminationReason.CANNOT_SERVE


@pytest.mark.parametrize(
    ("sizes", "size", "fault"),
    [
        (
            {"num_attention_heads": 12, "num_key_value_heads": 6},
            4,
            "num_key_value_heads 6 cannot be divided among 4 ranks, nor repeated; set "
            "parallelism.tensor to 1, 2, 3, 6 or 12",
        ),
        (
            {"intermediate_size": 99},
            2,
            "intermediate_size 99 cannot be divided among 2 ranks; set parallelism.tensor to 1",
        ),
    ],
)
def test_other_sizes_that_cannot_be_divided_are_named(
    llama: Path, sizes: dict[str, Any], size: int, fault: str
) -> None:
    config = LlamaConfig.load(llama)
    config = replace(config, decoder=replace(config.decoder, **sizes))
    with pytest.raises(CannotDivide, match=fault):
        shard_config(config, size, llama)


def test_the_size_of_experts_is_named_by_the_key_of_the_family(llama: Path, tmp_path: Path) -> None:
    for name, key in (
        ("qwen3_moe", "moe_intermediate_size 99"),
        ("gpt_oss", "intermediate_size 99"),
    ):
        folder = make_family(name, llama, tmp_path / name)
        config = LlamaConfig.load(folder)
        assert config.sparse_mlp is not None
        experts = replace(config.sparse_mlp, moe_intermediate_size=99)
        with pytest.raises(CannotDivide, match=rf"config.json: {key} cannot"):
            shard_config(replace(config, sparse_mlp=experts), 2, folder)


def quantized_of(store: TensorStore, name: str) -> QuantizedTensor | None:
    stored = store.tensors[name].quantized
    return None if stored is None else stored.read()


@pytest.mark.parametrize(("name", "size"), [*zip(sorted(CASES), cycle((2, 4)), strict=False)])
def test_parts_of_quantized_weights_are_those_of_whole_ones(
    name: str, size: int, llama: Path, tmp_path: Path
) -> None:
    folder = tmp_path / name
    write_quantized(CASES[name], llama, folder)
    whole = open_checkpoint(folder)
    for store in stores(folder, size):
        for each, ((part, _),) in store.pieces.items():
            assert torch.equal(read(store, each), read(whole, each)[part]), each
            own, wanted = quantized_of(store, each), quantized_of(whole, each)
            if own is not None:
                assert wanted is not None
                assert torch.equal(own.plain(), wanted.plain()[part]), each


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *((name, "int4") for name in ("gptq", "awq", "w4a16-asymmetric", "w4a16-group")),
        *((name, "float8_e4m3fn") for name in ("fp8-block", "fp8-deepseek")),
    ],
)
def test_weights_are_kept_where_no_group_is_cut(
    name: str, number: str, llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of 64 inputs of o_proj a rank has one group of 32, of 96 of down_proj one and a half."""
    folder, layer = tmp_path / name, "model.layers.0"
    write_quantized(CASES[name], llama, folder)
    with caplog.at_level(logging.WARNING):
        store = stores(folder, 2)[1]
    kept = {each for each, one in store.tensors.items() if one.quantized is not None}
    projections = [f"{layer}.self_attn.{part}_proj.weight" for part in "qkvo"]
    projections += [f"{layer}.mlp.{part}_proj.weight" for part in ("gate", "up")]
    assert kept.issuperset(projections)
    assert not any("down_proj" in each for each in kept)
    assert caplog.messages[0] == (
        f"3 weights of {number} are dequantized, model.layers.0.mlp.down_proj.weight the first: "
        "the 48 inputs that a rank has are not whole groups of 32; fewer ranks "
        "(parallelism.tensor) keep them as stored"
    )


def test_inputs_in_an_order_of_their_own_are_not_divided(
    llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A rank keeps its outputs of maps whose inputs are whole."""
    folder, layer = tmp_path / "quantized", "model.layers.0"
    write_quantized(CASES["gptq-v2-shuffled"], llama, folder)
    with caplog.at_level(logging.WARNING):
        store = stores(folder, 2)[1]
    kept = {each for each, one in store.tensors.items() if one.quantized is not None}
    assert {each for each in kept if each.startswith(layer)} == {
        *(f"{layer}.self_attn.{part}_proj.weight" for part in "qkv"),
        *(f"{layer}.mlp.{part}_proj.weight" for part in ("gate", "up")),
    }
    assert caplog.messages[0] == (
        f"6 weights of int4 are dequantized, {layer}.mlp.down_proj.weight the first: the 48 inputs "
        "that a rank has are not whole groups of 32 (desc_act); fewer ranks "
        "(parallelism.tensor) keep them as stored"
    )


def test_parts_of_experts_in_mxfp4_are_those_of_whole_ones(llama: Path, tmp_path: Path) -> None:
    """A rank has 24 of 96 inputs of down_proj, which are stored in blocks of 32."""
    folder = make_family("gpt_oss", llama, tmp_path / "gpt_oss")
    draw_mxfp4_experts(folder)
    whole = open_checkpoint(folder)
    for store in stores(folder, 4):
        for name in ("gate_up_proj", "down_proj"):
            each = f"model.layers.0.mlp.experts.{name}"
            ((part, _),) = store.pieces[each]
            assert torch.equal(read(store, each), read(whole, each)[part])
            own, wanted = quantized_of(store, each), quantized_of(whole, each)
            assert wanted is not None
            assert (own is None) == (name == "down_proj")
            if own is not None:
                experts, inputs, outputs = part
                assert torch.equal(own.plain(), wanted.plain()[experts, outputs, inputs])


@pytest.mark.parametrize("name", ["int8-channel", "fp8-channel", "fp8-tensor"])
def test_weights_with_scales_of_outputs_are_always_kept(
    name: str, llama: Path, tmp_path: Path
) -> None:
    write_quantized(CASES[name], llama, tmp_path / name)
    for store in stores(tmp_path / name, 4):
        own = quantized_of(store, "model.layers.0.mlp.down_proj.weight")
        assert own is not None
        assert own.precision.bits == 8
        assert tuple(own.shape) == (64, 24)
