"""Layers with sliding windows in fewer pages: texts stay, and bytes are those that were planned.

The caches are poisoned and small: window pages go from text to text, hits are cut, and a row that
is read from the wrong page shows.
"""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from checks.lossless.families import make_family
from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_api.metrics.core import KV_WINDOW_PAGES
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.engine import EngineCore
from tests.engine.checkpoints import Checkpoints
from tests.engine.whole_engine import Answer, boot_of, run

WINDOW = 6


@pytest.fixture(scope="module", params=["mistral", "qwen3"])
def windowed(
    request: pytest.FixtureRequest,
    checkpoints: Checkpoints,
    tmp_path_factory: pytest.TempPathFactory,
) -> Checkpoints:
    """Windows in every layer, and in every second one."""
    folder: Path = tmp_path_factory.mktemp(request.param)
    target = make_family(request.param, checkpoints.target, folder / "target", window=WINDOW)
    return replace(checkpoints, target=target)


def make_core(
    checkpoints: Checkpoints,
    algorithm: str = "NONE",
    topk: int = 1,
    *,
    overlap: bool = False,
    kv_cache_bytes: int | None = None,
    graphs: str = "off",
) -> EngineCore:
    boot = boot_of(checkpoints, algorithm, topk, graphs={"mode": graphs})
    boot["memory"] = {"page_size": 4, "kv_cache_bytes": kv_cache_bytes}
    boot["scheduling"] = {
        "max_running_requests": 3, "chunked_prefill_tokens": 10, "overlap": overlap,
    }  # fmt: skip
    return build_poisoned(EngineBoot.model_validate(boot))


def make_requests(vocab: int) -> list[Request]:
    """Conversations that continue and branch, several times as long as the window."""
    rng, requests = random.Random(3), list[Request]()
    stems = [tuple(rng.randrange(vocab) for _ in range(24)) for _ in range(3)]
    for number in range(10):
        stem = stems[number % 3][: rng.choice([16, 24])]
        tail = tuple(rng.randrange(vocab) for _ in range(rng.randrange(1, 14)))
        sampling = SamplingParams(
            seed=number, max_tokens=rng.randrange(6, 18), temperature=0.9 * (number % 2),
            ignore_eos=True, logprobs=1,
        )  # fmt: skip
        requests.append(Request(str(number), stem + tail, sampling))
    return requests


@pytest.fixture(scope="module")
def plain(windowed: Checkpoints) -> dict[str, Answer]:
    core = make_core(windowed)
    assert core.facts["kv_window_pages"] == core.facts["kv_pages"], "there is memory for all"
    return {r.request_id: run(core, [r])[r.request_id] for r in make_requests(windowed.vocab)}


def budget_of(checkpoints: Checkpoints, algorithm: str, pages: int) -> int:
    """Bytes of a cache in which every page has a window page."""
    facts = make_core(checkpoints, algorithm).facts
    return pages * int(str(facts["kv_cache_bytes"])) // int(str(facts["kv_pages"]))


@pytest.mark.parametrize(
    ("algorithm", "topk", "overlap", "mode"),
    [
        ("NONE", 1, True, "off"),
        ("STANDALONE", 4, False, "off"),
        ("STANDALONE", 1, True, "static"),
        ("EAGLE3", 3, True, "static"),
    ],
)
def test_text_is_the_same_in_fewer_window_pages(
    windowed: Checkpoints,
    plain: dict[str, Answer],
    algorithm: str,
    topk: int,
    overlap: bool,
    mode: str,
) -> None:
    core = make_core(
        windowed, algorithm, topk, overlap=overlap, graphs=mode,
        kv_cache_bytes=budget_of(windowed, algorithm, pages=40),
    )  # fmt: skip
    limits = core.scheduler.limits
    assert limits.window == WINDOW
    assert limits.window_pages < limits.pages
    requests = make_requests(windowed.vocab)
    assert core.snapshot()[KV_WINDOW_PAGES] == limits.window_pages - 1
    for turn in range(2):
        assert run(core, requests, preempted_at_step=4 + turn) == plain
    scheduler = core.scheduler
    assert scheduler.windows is not None
    assert core.snapshot()[KV_WINDOW_PAGES, "used"] == 0, "no request is left"
    assert scheduler.preempted_total >= 2
    assert scheduler.cache.hit_tokens > 0
    without = [page for page in scheduler.cache.check() if not scheduler.windows._attached[page]]
    assert without, "no cached page has lost its window page: the cache is too large for this test"


def test_bytes_are_what_is_allocated(windowed: Checkpoints) -> None:
    budget = budget_of(windowed, "STANDALONE", pages=40)
    core = make_core(windowed, "STANDALONE", kv_cache_bytes=budget)
    draft_pool = core.context.drafter._pool  # type: ignore[union-attr]
    allocated = core.context.pool.num_bytes + draft_pool.num_bytes
    assert core.facts["kv_cache_bytes"] == allocated <= budget
    layer_map, rows = core.context.target.config.layer_map, 4 * core.scheduler.limits.window_pages
    for shape, group in zip(layer_map.shapes, core.context.pool.groups, strict=True):
        assert (group.k.shape[1] == rows) == (shape.sliding_window is not None)


def test_a_window_makes_room_for_more_tokens(windowed: Checkpoints) -> None:
    """The same bytes hold more pages than without window pages of their own."""
    budget = budget_of(windowed, "NONE", pages=60)
    limits = make_core(windowed, kv_cache_bytes=budget).scheduler.limits
    assert limits.pages > 60
    assert limits.kv_bytes <= budget
