"""MTP modules with multi-head latent attention in whole engines: text, cache and memory."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file

from checks.lossless.families import LATENT, make_family
from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.drafts.mtp import MtpHead
from specdecode_engine.model.drafts.mtp_config import MtpConfig
from specdecode_engine.model.kv.draft_scratch import DraftScratch
from specdecode_engine.model.layers.latent_attention import LatentAttention
from specdecode_engine.model.layers.linears import Linears
from specdecode_engine.model.target.config import LlamaConfig
from specdecode_engine.model.target.llama import Llama
from specdecode_engine.startup.kernel_calls import layer_maps
from specdecode_kernels import INT8, QuantizedTensor
from tests.engine.checkpoints import VOCAB, Checkpoints
from tests.engine.mtp_checkpoints import LATENT_KEYS, export_module
from tests.engine.test_mtp import record_drafts
from tests.engine.whole_engine import Answer, boot_of, requests_of, run

KEY, RANK = 40, 32
"""Entries of a cached row and of its latent, by `LATENT_KEYS`."""


@pytest.fixture(scope="module")
def latent(checkpoints: Checkpoints, tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """A target and a module with latent attention."""
    folder = tmp_path_factory.mktemp("latent")
    target = make_family(LATENT, checkpoints.target, folder / "target")
    module = export_module(checkpoints.target, folder / "module", **LATENT_KEYS)
    return replace(checkpoints, target=target, mtp=module)


def make_core(
    checkpoints: Checkpoints, algorithm: str = "MTP", topk: int = 1, **memory: object
) -> EngineCore:
    boot = boot_of(checkpoints, algorithm, topk, memory={"page_size": 4, **memory})
    return build_poisoned(EngineBoot.model_validate(boot))


def answer(core: EngineCore, preempted_at_step: int | None = None) -> dict[str, Answer]:
    return run(core, requests_of(VOCAB, 4, max_tokens=12), preempted_at_step)


@pytest.mark.parametrize("cache", ["auto", "fp8_e4m3"])
def test_drafts_change_no_text(latent: Checkpoints, cache: str) -> None:
    plain = answer(make_core(latent, "NONE", kv_cache_dtype=cache))
    for topk in (1, 4):
        core = make_core(latent, topk=topk, kv_cache_dtype=cache)
        assert answer(core, preempted_at_step=5) == plain
        assert core.counters.decode.drafted_tokens > 0
        assert core.scheduler.preempted_total == 1


@pytest.mark.parametrize("q_lora_rank", [24, None])
@pytest.mark.parametrize("topk", [1, 4])
def test_pages_of_any_size_hold_the_same_drafts(
    checkpoints: Checkpoints, tmp_path: Path, topk: int, q_lora_rank: int | None
) -> None:
    keys = {**LATENT_KEYS, "q_lora_rank": q_lora_rank}
    module = export_module(checkpoints.target, tmp_path / "module", **keys)
    found = []
    for page_size in (1, 16, 256):
        core = make_core(replace(checkpoints, mtp=module), topk=topk, page_size=page_size)
        drafts = record_drafts(core)
        found.append((answer(core), drafts))
    assert found[0] == found[1] == found[2]
    assert found[0][1]


def test_the_cache_of_the_draft_is_one_tensor(
    checkpoints: Checkpoints, latent: Checkpoints
) -> None:
    drafter: Any = make_core(latent).context.drafter
    layer_map = MtpConfig.load(latent.mtp, LlamaConfig.load(checkpoints.target)).layer_map
    scratch = DraftScratch(layer_map, 2, 3, torch.float32, torch.device("cpu"))
    k = torch.arange(2.0 * KEY).view(2, 1, KEY)
    keys, values = scratch.store(0, 0, 2, k, k[..., :RANK])
    assert torch.equal(keys[:, 0], k)
    assert torch.equal(values[:, 0], k[..., :RANK])
    for (group,) in (drafter._pool.groups, scratch.groups):
        assert (group.k.shape[-1], group.v.shape[-1]) == (KEY, RANK)
        assert group.v.untyped_storage().data_ptr() == group.k.untyped_storage().data_ptr()
        assert group.num_bytes == group.k.nbytes


def test_the_memory_plan_counts_latents_once(
    checkpoints: Checkpoints, latent: Checkpoints, caplog: pytest.LogCaptureFixture
) -> None:
    own = sum(one.numel() for one in load_file(latent.mtp / "model.safetensors").values())
    angles = 2 * 512 * 4
    with caplog.at_level("INFO"):
        core = make_core(replace(checkpoints, mtp=latent.mtp))
    (line,) = [one for one in caplog.messages if "draft's weights" in one]
    assert line.endswith(f" {4 * (own + angles) / 2**20:.1f} MiB")
    drafter: Any = core.context.drafter
    pool = drafter._pool
    assert pool.num_bytes == pool.pages * pool.page_size * KEY * torch.float32.itemsize


def test_maps_of_heads_are_never_of_integers(checkpoints: Checkpoints, tmp_path: Path) -> None:
    sizes = {"q_lora_rank": 64, "kv_lora_rank": 64, "qk_nope_head_dim": 64, "v_head_dim": 64}
    folder = export_module(checkpoints.target, tmp_path / "wide", **{**LATENT_KEYS, **sizes})
    target = Llama.load(checkpoints.target, device=torch.device("cpu"))
    head = MtpHead.load(folder, target, linears=Linears(precision=INT8))
    maps = cast(LatentAttention, head.modules[0].layer.attention).maps
    assert maps.queries is not None
    planned = {(one.outputs, one.inputs) for one in layer_maps(head.config.decoder)}
    for one in (maps.down, maps.queries[1], maps.output):
        assert isinstance(one.weight, QuantizedTensor)
        assert tuple(one.weight.shape) in planned
    for heads in (maps.keys, maps.values):
        assert isinstance(heads, torch.Tensor)
        assert heads.shape == (4, 64, 64)
