"""Ranks that have parts of transformers' modules compute what the whole model does."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from checks.zoo.logits import (
    LENGTH,
    PARENTS,
    PREFIX,
    TEXTS,
    TOLERANCE,
    PagedTexts,
    draw_texts,
    worst_differences,
)
from checks.zoo.models import ZooModel
from specdecode_engine.model.layers.linears import DividedLinear
from specdecode_engine.model.target.sharding import CannotDivide
from specdecode_engine.model.target.transformers_config import TransformersConfig
from specdecode_engine.model.transformers.divided_config import divide_transformers_config
from specdecode_engine.model.transformers.model import TransformersModel
from specdecode_engine.ranks import ALONE, Ranks
from specdecode_kernels import TORCH
from tests.engine.loading_ranks import on_loading_ranks
from tests.engine.model.checkpoint.quantized.writers import CASES, write_quantized
from tests.engine.thread_ranks import Meeting, ThreadRanks

CPU = torch.device("cpu")
VOCAB = 96
FILE = "model.safetensors"
STEPS = [[(0, 0, 20), (1, 0, PREFIX)], [(0, 20, LENGTH), (1, PREFIX, PREFIX + 1)]]

DENSE = [
    *("llama", "qwen3", "gemma2", "granite", "cohere", "cohere2", "glm", "glm4", "phi", "phi3"),
    *("smollm3", "exaone4", "starcoder2", "seed_oss", "olmo", "nemotron", "ernie4_5", "arcee"),
    *("hunyuan_v1_dense", "ministral3"),
]

MIXTURES = [
    *("qwen3_moe", "glm4_moe", "gpt_oss", "mixtral", "phimoe", "qwen2_moe", "ernie4_5_moe"),
    *("hunyuan_v1_moe", "hy_v3", "afmoe", "dots1", "granitemoe", "llama4_text"),
]
LATENT = ["deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "youtu"]
UNEQUAL = ["gemma4_text", "gemma4_moe"]
NORMED_ROWS = ["olmo2", "olmo3", "olmoe", "minimax_m2"]
RECURRENT = ["qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "lfm2", "lfm2_moe"]


def load(folder: Path, ranks: Ranks = ALONE) -> TransformersModel:
    config = TransformersConfig.load(folder)
    return TransformersModel.load(config, dtype=torch.float64, device=CPU, ranks=ranks)


@torch.no_grad()
def compute_texts(folder: Path, vocab: int, ranks: Ranks = ALONE) -> tuple[PagedTexts, Tensor]:
    """Return what is kept of texts, and logits of chunks, of a tree after the second text's first
    chunk, and of a decode row, [rows, vocab] f64.
    """
    target, drawn = load(folder, ranks), torch.Generator().manual_seed(5)
    ids = torch.randint(6, vocab, (TEXTS, LENGTH), generator=drawn)
    depths, mask = TORCH.build_tree_mask(torch.tensor([PARENTS]), 3)
    texts, logits = PagedTexts.make(target, 4), []
    for spans in STEPS:
        positions, view = texts.spans(spans)
        rows = torch.cat([ids[text, start:end] for text, start, end in spans])
        logits.append(target.logits(target.forward(rows, positions, view)[0]))
        if spans is STEPS[0]:
            positions, view = texts.tree(1, mask, depths[0])
            rows = ids[0, : len(PARENTS)]
            logits.append(target.logits(target.forward(rows, positions, view)[0]))
    return texts, torch.cat(logits)


def compute(folder: Path, vocab: int, ranks: Ranks = ALONE) -> Tensor:
    return compute_texts(folder, vocab, ranks)[1]


def made(zoo_model: ZooModel, folder: Path, **keys: Any) -> Path:
    """Write a checkpoint whose sizes can be divided."""
    replace(zoo_model, keys={**zoo_model.keys, **keys}).make(folder)
    return folder


@pytest.mark.parametrize("name", [*DENSE, *MIXTURES, *LATENT, *RECURRENT, *NORMED_ROWS, *UNEQUAL])
def test_ranks_compute_together_what_one_does(
    name: str,
    models: Mapping[str, ZooModel],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = made(models[name], tmp_path / name)
    vocab = models[name].vocab
    whole = compute(folder, vocab)
    parts = on_loading_ranks(2, lambda ranks: compute(folder, vocab, ranks), monkeypatch)
    assert all(torch.equal(part, parts[0]) for part in parts)
    assert (parts[0] - whole).abs().max() <= 1e-12 * whole.abs().max()


@pytest.mark.parametrize(
    "name",
    [
        "glm4",
        "phi3",
        "cohere",
        "qwen3",
        "gpt_oss",
        "glm4_moe",
        "llama4_text",
        *RECURRENT,
        *NORMED_ROWS,
        *UNEQUAL,
    ],
)
def test_four_ranks_share_two_kv_heads_and_divide_the_head(
    name: str, models: Mapping[str, ZooModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wider: dict[str, Any] = {"intermediate_size": 96, "vocab_size": VOCAB, "head_dim": 16}
    if "intermediate_size_mlp" in models[name].keys:
        wider["intermediate_size_mlp"] = 96
    if "moe_intermediate_size" in models[name].keys:
        wider["moe_intermediate_size"] = 48
    if "shared_expert_intermediate_size" in models[name].keys:
        wider["shared_expert_intermediate_size"] = 48
    if name == "olmoe":  # whose config has no other size of the norm of keys
        wider["num_key_value_heads"] = 4
    if models[name].has_states:
        wider |= {"linear_num_key_heads": 4, "linear_num_value_heads": 8}
    folder = made(models[name], tmp_path / name, **wider)
    whole = compute(folder, VOCAB)
    parts = on_loading_ranks(4, lambda ranks: compute(folder, VOCAB, ranks), monkeypatch)
    assert all(torch.equal(part, parts[0]) for part in parts)
    assert (parts[0] - whole).abs().max() <= 1e-12 * whole.abs().max()


@pytest.mark.parametrize("name", [*RECURRENT, *NORMED_ROWS, *UNEQUAL, "llama4_text"])
def test_ranks_compute_what_transformers_does(
    name: str, models: Mapping[str, ZooModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = models[name].make(tmp_path / name).double()
    texts = draw_texts(reference)

    def differences(ranks: Ranks) -> dict[str, float]:
        return worst_differences(reference, load(tmp_path / name, ranks), texts)

    for found in on_loading_ranks(2, differences, monkeypatch):
        assert max(found.values()) <= TOLERANCE, found


@pytest.mark.parametrize("is_tied", [False, True])
def test_a_rank_has_its_share_of_the_weights(
    is_tied: bool,
    models: Mapping[str, ZooModel],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = {"vocab_size": VOCAB, "tie_word_embeddings": is_tied}
    folder = made(models["granite"], tmp_path / "granite", **keys)
    for rank, target in enumerate(
        on_loading_ranks(2, lambda ranks: load(folder, ranks), monkeypatch)
    ):
        assert isinstance(target.head, DividedLinear)
        own = target.embedding if is_tied else load_file(folder / FILE)["lm_head.weight"]
        share = own[rank * VOCAB // 2 : (rank + 1) * VOCAB // 2].double()
        assert torch.equal(target.head.plain_weight(), share)
        (shape,) = target.config.layer_map.shapes
        assert shape.kv_heads == 1
        layer: Any = next(
            one for one in target.network.modules() if "DecoderLayer" in type(one).__name__
        )
        assert layer.self_attn.output.weight.shape == (64, 32)
        assert layer.mlp.gate_up.weight.shape == (90, 64)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("stablelm", "model.layers.0.self_attn of StableLm"),
        ("helium", "model.layers.0.self_attn of Helium"),
        ("bitnet", "model.layers.0.self_attn of BitNet"),
    ],
)
def test_what_is_not_the_sum_of_parts_is_refused(
    name: str, fault: str, models: Mapping[str, ZooModel], tmp_path: Path
) -> None:
    folder = made(models[name], tmp_path / name)
    with pytest.raises(CannotDivide, match=fault) as caught:
        load(folder, ThreadRanks(0, 2, Meeting(2)))
    assert str(caught.value).endswith("; set parallelism.tensor to 1")


def test_numbers_of_ranks_that_can_divide_are_named(
    models: Mapping[str, ZooModel], tmp_path: Path
) -> None:
    folder = made(models["glm4"], tmp_path / "glm4")
    with pytest.raises(CannotDivide, match="intermediate_size 90 cannot be divided among 4 ranks"):
        divide_transformers_config(TransformersConfig.load(folder), 4)


def test_key_heads_of_gated_delta_nets_are_not_repeated(
    models: Mapping[str, ZooModel], tmp_path: Path
) -> None:
    keys = {"moe_intermediate_size": 48, "shared_expert_intermediate_size": 48}
    folder = made(models["qwen3_next"], tmp_path / "next", intermediate_size=96, **keys)
    fault = (
        r"linear_num_key_heads 2 cannot be divided among 4 ranks; set parallelism.tensor to 1 or 2$"
    )
    with pytest.raises(CannotDivide, match=fault):
        divide_transformers_config(TransformersConfig.load(folder), 4)


@pytest.mark.parametrize("form", CASES)
@pytest.mark.parametrize("name", ["granite", "glm4"])
def test_ranks_read_their_parts_of_quantized_weights(
    name: str,
    form: str,
    models: Mapping[str, ZooModel],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = {"intermediate_size": 128, "hidden_size": 128, "head_dim": 32}
    plain, folder = made(models[name], tmp_path / "plain", **keys), tmp_path / form
    torch.manual_seed(0)
    write_quantized(CASES[form], plain, folder)
    whole = compute(folder, models[name].vocab)
    assert not torch.equal(whole, compute(plain, models[name].vocab))
    parts = on_loading_ranks(
        2, lambda ranks: compute(folder, models[name].vocab, ranks), monkeypatch
    )
    assert torch.equal(parts[0], parts[1])
    assert (parts[0] - whole).abs().max() <= 1e-12 * whole.abs().max()
