"""A cache in float8: half the memory, other texts, and still none that speculation changes."""

import itertools
import logging
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_api.speculation import Algorithm
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.checkpoint.checkpoint import TensorError
from specdecode_engine.model.checkpoint.quantized.kv_scales import read_kv_scales
from specdecode_engine.model.kv.kv_cache import KVCache
from specdecode_engine.model.kv.layer_map import LayerMap
from specdecode_kernels import KvScale
from tests.engine.model.checkpoint.quantized.writers import CASES, write_quantized
from tests.engine.whole_engine import DRAFTS, Answer, boot_of, requests_of, run

FP8 = {"kv_cache_dtype": "fp8_e4m3"}
LAYERS = 3


def build(checkpoints, algorithm: str, topk: int, **memory: object) -> EngineCore:
    document = boot_of(checkpoints, algorithm, topk, memory=memory)
    return build_poisoned(EngineBoot.model_validate(document))


def run_requests(core: EngineCore, vocab: int) -> dict[str, Answer]:
    return run(core, requests_of(vocab, 4, 24))


@pytest.fixture(scope="module")
def plain(checkpoints) -> dict[str, Answer]:
    return run_requests(build(checkpoints, "NONE", 1, **FP8), checkpoints.vocab)


@pytest.mark.parametrize(
    ("algorithm", "topk"),
    [
        (name, topk)
        for name in DRAFTS
        for topk in (1, 3)
        if Algorithm(name).drafts_trees or topk == 1
    ],
)
def test_texts_and_logprobs_equal_plain_ones_of_the_same_cache(
    algorithm: str, topk: int, checkpoints, plain: dict[str, Answer]
) -> None:
    core = build(checkpoints, algorithm, topk, **FP8)
    assert run_requests(core, checkpoints.vocab) == plain
    assert core.counters.decode.accepted_tokens > 0 or algorithm != "STANDALONE"


def test_rounding_changes_texts(checkpoints, plain: dict[str, Answer]) -> None:
    assert run_requests(build(checkpoints, "NONE", 1), checkpoints.vocab) != plain


def test_a_prefix_found_in_the_cache_changes_nothing(checkpoints, plain: dict[str, Answer]) -> None:
    core = build(checkpoints, "STANDALONE", 3, **FP8)
    assert run_requests(core, checkpoints.vocab) == plain
    hits = core.scheduler.cache.hit_tokens
    assert run_requests(core, checkpoints.vocab) == plain
    assert core.scheduler.cache.hit_tokens > hits


def test_pages_take_a_quarter_of_float32s(checkpoints) -> None:
    budget = 1 << 17
    pages = {}
    for name in ("auto", "fp8_e4m3"):
        core = build(checkpoints, "EAGLE3", 1, kv_cache_dtype=name, kv_cache_bytes=budget)
        pages[name] = int(str(core.facts["kv_pages"]))
        draft_pool = core.context.drafter._pool  # type: ignore[union-attr]
        allocated = core.context.pool.num_bytes + draft_pool.num_bytes
        assert core.facts["kv_cache_bytes"] == allocated <= budget
    assert 4 * pages["auto"] <= pages["fp8_e4m3"] < 4 * (pages["auto"] + 1)


def test_facts_and_pools_are_of_that_type(checkpoints) -> None:
    core = build(checkpoints, "EAGLE3", 1, **FP8)
    assert core.facts["kv_cache_dtype"] == "float8_e4m3fn"
    (group,) = core.context.pool.groups
    assert group.k.dtype == group.v.dtype == torch.float8_e4m3fn
    assert bool(group.k.float().isnan().any())  # poisoned where nothing was written


def test_what_is_read_back_is_what_attention_reads() -> None:
    pool = KVCache(LayerMap.uniform(1, 1, 6), 2, 4, torch.float8_e4m3fn, torch.device("cpu"))
    k, v = torch.randn(2, 3, 1, 6)
    rows = torch.tensor([5, 4, 7])
    pool.store(0, rows, k, v)
    read_k, read_v = pool.as_stored(0, rows, k, v)
    assert read_k.dtype == torch.float32
    assert torch.equal(read_k, pool.groups[0].k[0].float()[rows])
    assert torch.equal(read_v, v.to(torch.float8_e4m3fn).float())
    assert not torch.equal(read_v, v)


@pytest.fixture(scope="module")
def quantized(checkpoints, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scales") / "target"
    write_quantized(CASES["fp8-channel"], checkpoints.target, folder)
    return folder


def with_scales(source: Path, folder: Path, *named: tuple[str, Tensor]) -> Path:
    """Copy a checkpoint, with scales for the KV cache of every layer."""
    shutil.copytree(source, folder)
    tensors = load_file(source / "model.safetensors")
    for layer, (name, scale) in itertools.product(range(LAYERS), named):
        tensors[f"model.layers.{layer}.self_attn.{name}"] = scale * 2**layer
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def build_on(target: Path, checkpoints, algorithm: str = "NONE") -> EngineCore:
    document = boot_of(checkpoints, algorithm, 1, memory=FP8)
    document["model"]["path"] = str(target)
    return build_poisoned(EngineBoot.model_validate(document))


def with_scaled_maps(source: Path, folder: Path, k: float, v: float) -> Path:
    """Copy a checkpoint whose projections give keys and values that scales would give."""
    shutil.copytree(source, folder)
    tensors = load_file(source / "model.safetensors")
    for layer in range(LAYERS):
        factors = {"q": k, "k": 1 / k, "v": 1 / v, "o": v}
        for part, factor in factors.items():
            scale = tensors[f"model.layers.{layer}.self_attn.{part}_proj.weight_scale"]
            scale *= factor * 2**layer if factor > 1 else factor / 2**layer
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_scales_of_the_checkpoint_are_those_of_the_cache(
    quantized: Path, checkpoints, tmp_path: Path
) -> None:
    """The entries are those of projections that were divided by powers of two."""
    scaled_maps = with_scaled_maps(quantized, tmp_path / "maps", 4.0, 2.0)
    expected = run_requests(build_on(scaled_maps, checkpoints), checkpoints.vocab)
    of_modelopt = (("k_proj.k_scale", torch.tensor(4.0)), ("v_proj.v_scale", torch.tensor(2.0)))
    of_compressed_tensors = (("k_scale", torch.tensor([4.0])), ("v_scale", torch.tensor([2.0])))
    for place, named in (("a", of_modelopt), ("b", of_compressed_tensors)):
        target = with_scales(quantized, tmp_path / place, *named)
        core = build_on(target, checkpoints)
        scales = [pool.scale for pool in core.context.pool._layers]
        assert scales == [KvScale(4.0 * 2**layer, 2.0 * 2**layer) for layer in range(LAYERS)]
        assert run_requests(core, checkpoints.vocab) == expected
    unscaled = run_requests(build_on(quantized, checkpoints), checkpoints.vocab)
    assert unscaled != expected
    for algorithm in ("STANDALONE", "EAGLE3", "NGRAM"):
        drafting = build_on(target, checkpoints, algorithm)
        assert run_requests(drafting, checkpoints.vocab) == expected


def test_scales_that_are_missing_are_1(
    quantized: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = with_scales(quantized, tmp_path / "keys", ("k_scale", torch.tensor([0.5])))
    with caplog.at_level(logging.INFO):
        found = read_kv_scales(target, LAYERS + 1)
    assert found == (KvScale(0.5), KvScale(1.0), KvScale(2.0), KvScale())
    assert caplog.messages == [
        f"{target}: 4 of 4 layers lack scales of keys or values for the KV cache; they are 1"
    ]


@pytest.mark.parametrize(
    ("scale", "fault"),
    [
        (torch.ones(2), "is [2]; it must be one number"),
        (torch.tensor([0.0]), "is 0.0; it must be a positive number"),
        (torch.tensor(torch.nan), "is nan; it must be a positive number"),
    ],
)
def test_scales_that_are_no_positive_number_are_refused(
    scale: Tensor, fault: str, quantized: Path, checkpoints, tmp_path: Path
) -> None:
    target = with_scales(quantized, tmp_path / "bad", ("k_proj.k_scale", scale))
    with pytest.raises(TensorError) as found:
        build_on(target, checkpoints)
    assert f"model.layers.0.self_attn.k_proj.k_scale {fault}" in str(found.value)
    assert "set the KV cache's type to auto" in str(found.value)
