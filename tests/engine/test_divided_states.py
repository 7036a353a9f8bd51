"""Ranks that have parts of gated delta nets: texts, states, cached prefixes, the own MTP module."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

from checks.lossless.families import make_family
from checks.lossless.poison import build_poisoned
from checks.lossless.recurrent_families import DELTA
from specdecode_api.boot import EngineBoot
from specdecode_engine.engine import EngineCore
from specdecode_engine.ranks import ALONE, Ranks
from tests.engine.checkpoints import VOCAB, Checkpoints
from tests.engine.loading_ranks import on_loading_ranks
from tests.engine.test_recurrent import (
    MAX_TOKENS,
    conversations,
    states_after,
    with_frequent_states,
    write_published,
)
from tests.engine.whole_engine import Answer, boot_of, requests_of, run

T = TypeVar("T")


@pytest.fixture(scope="module")
def models(checkpoints: Checkpoints, tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """A target with states; drafts are those for a Llama of its sizes."""
    folder = tmp_path_factory.mktemp("recurrent") / "target"
    return replace(checkpoints, target=make_family(DELTA, checkpoints.target, folder))


@pytest.fixture
def both_ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Ranks], T]], T]:
    """Compute on two ranks what has to be equal on both."""

    def compute(work: Callable[[Ranks], T]) -> T:
        first, second = on_loading_ranks(2, work, monkeypatch)
        assert first == second
        return first

    return compute


Both = Callable[[Callable[[Ranks], dict[str, Answer]]], dict[str, Answer]]


def make_core(
    models: Checkpoints, ranks: Ranks, algorithm: str = "NONE", topk: int = 1, **sections: Any
) -> EngineCore:
    sections = {"memory": {"page_size": 4}, **sections}
    boot = boot_of(models, algorithm, topk, num_steps=5, **sections)
    return build_poisoned(EngineBoot.model_validate(boot), ranks=ranks)


@pytest.fixture
def plain(models: Checkpoints, both_ranks: Both) -> dict[str, Answer]:
    return both_ranks(
        lambda ranks: run(make_core(models, ranks), requests_of(VOCAB, 4, MAX_TOKENS))
    )


@pytest.mark.parametrize(
    ("algorithm", "topk"),
    [
        *[(algorithm, 1) for algorithm in ("STANDALONE", "EAGLE3", "DFLASH")],
        *[(algorithm, 4) for algorithm in ("NGRAM", "EAGLE", "MTP", "PEAGLE")],
    ],
)
def test_text_equals_plain_text(
    models: Checkpoints, plain: dict[str, Answer], both_ranks: Both, algorithm: str, topk: int
) -> None:
    def answers(ranks: Ranks) -> dict[str, Answer]:
        graphs = {"mode": "static" if topk == 1 else "off"}
        core = make_core(models, ranks, algorithm, topk, graphs=graphs)
        found = run(core, requests_of(VOCAB, 4, MAX_TOKENS), preempted_at_step=6)
        assert core.counters.decode.drafted_tokens > 0
        return found

    assert both_ranks(answers) == plain


@pytest.mark.parametrize(
    ("algorithm", "topk", "count", "overlap"), [("NONE", 1, 2, True), ("STANDALONE", 3, 1, False)]
)
def test_text_is_the_same_after_a_cached_prefix(
    models: Checkpoints, both_ranks: Both, algorithm: str, topk: int, count: int, overlap: bool
) -> None:
    requests = conversations(seed=count)
    plain = both_ranks(
        lambda ranks: run(make_core(models, ranks, memory={"prefix_cache": False}), requests)
    )
    scheduling = {
        "max_running_requests": 3, "chunked_prefill_tokens": 11, "overlap": overlap,
    }  # fmt: skip

    def answers(ranks: Ranks) -> dict[str, Answer]:
        core = make_core(models, ranks, algorithm, topk, scheduling=scheduling)
        with_frequent_states(core, count)
        found = [run(core, requests, preempted_at_step=4 + turn) for turn in range(2)]
        assert core.scheduler.cache.hit_tokens > 0
        assert found[0] == found[1]
        return found[0]

    assert both_ranks(answers) == plain


@pytest.mark.parametrize("topk", [1, 3])
def test_a_published_checkpoint_drafts_with_its_own_module(
    models: Checkpoints, plain: dict[str, Answer], both_ranks: Both, tmp_path: Path, topk: int
) -> None:
    target = write_published(models.target, tmp_path / "published")
    boot = boot_of(replace(models, target=target), "NGRAM", topk)
    boot["speculation"] = {"algorithm": "MTP", "num_steps": 3, "topk": topk}

    def answers(ranks: Ranks) -> dict[str, Answer]:
        core = build_poisoned(EngineBoot.model_validate(boot), ranks=ranks)
        found = run(core, requests_of(VOCAB, 4, MAX_TOKENS))
        assert core.counters.decode.drafted_tokens > 0
        return found

    assert both_ranks(answers) == plain


def test_a_rank_keeps_its_part_of_the_states(
    models: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    def states(ranks: Ranks = ALONE) -> tuple[Tensor, Tensor, int]:
        """Return both parts of the state after 21 tokens, and what a request takes."""
        core = make_core(models, ranks)
        inputs, matrices = states_after(core, requests_of(VOCAB, 1, 4)[0])[21]
        size = core.facts["state_bytes_per_request"]
        assert isinstance(size, int)
        return inputs, matrices, size

    inputs, matrices, size = states()
    parts = on_loading_ranks(2, states, monkeypatch)
    assert [own for _, _, own in parts] == [size // 2] * 2
    torch.testing.assert_close(torch.cat([own for _, own, _ in parts], dim=1), matrices)
    keys = inputs.shape[2] // 4  # of a quarter each: q and k, and the halves of v
    by_rank = [own.split_with_sizes([keys // 2, keys // 2, keys], dim=2) for own, _, _ in parts]
    joined = torch.cat([torch.cat(pieces, dim=2) for pieces in zip(*by_rank, strict=True)], dim=2)
    torch.testing.assert_close(joined, inputs)
