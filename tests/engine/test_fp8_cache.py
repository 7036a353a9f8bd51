"""A cache in float8: half the memory, other texts, and still none that speculation changes."""

import pytest
import torch

from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_api.speculation import Algorithm
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.kv.kv_cache import KVCache
from specdecode_engine.model.kv.layer_map import LayerMap
from tests.engine.whole_engine import DRAFTS, Answer, boot_of, requests_of, run

FP8 = {"kv_cache_dtype": "fp8_e4m3"}


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
