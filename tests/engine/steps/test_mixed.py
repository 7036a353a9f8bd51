"""Prefill and decode in one forward, where supported: same answers as separate steps."""

from typing import Any

import pytest

from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_engine.engine import EngineCore
from specdecode_engine.steps.launch import Launcher
from tests.engine.whole_engine import Answer, boot_of, requests_of, run

TOKENS = 12


def build(checkpoints, algorithm: str, topk: int = 1, **sections: Any) -> EngineCore:
    scheduling = {"max_running_requests": 3, "chunked_prefill_tokens": 12}
    document = boot_of(checkpoints, algorithm, topk, scheduling=scheduling, **sections)
    return build_poisoned(EngineBoot.model_validate(document))


def answer(core: EngineCore) -> dict[str, Answer]:
    vocab = core.context.target.config.vocab_size
    return run(core, requests_of(vocab, 7, TOKENS), preempted_at_step=9)


@pytest.mark.parametrize("algorithm", ["NONE", "STANDALONE", "EAGLE", "EAGLE3"])
def test_answers_are_those_of_rounds_of_their_own(
    algorithm: str, checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed = build(checkpoints, algorithm)
    together = answer(mixed)
    monkeypatch.setattr(Launcher, "_can_mix", lambda *_: False)
    separate = build(checkpoints, algorithm)
    apart = answer(separate)
    assert mixed.counters.mixed_steps > 3
    assert separate.counters.mixed_steps == 0
    assert together.keys() == apart.keys()
    assert all(len(one.tokens) == TOKENS for one in together.values())
    assert together == apart
    assert mixed.counters.prompt_tokens == separate.counters.prompt_tokens
    assert mixed.counters.decode.request_steps == separate.counters.decode.request_steps


def test_a_mixed_round_shares_its_time_by_rows(checkpoints) -> None:
    core = build(checkpoints, "NONE")
    answer(core)
    counted = core.counters
    assert counted.prefill_seconds > 0
    assert counted.decode.seconds > 0
    alone = sum(totals.steps for totals in counted.buckets.values())
    assert alone + counted.mixed_steps == counted.decode.steps


@pytest.mark.parametrize(
    ("topk", "sections"),
    [(2, {}), (1, {"graphs": {"mode": "static"}})],
    ids=["trees", "CUDA graphs"],
)
def test_trees_and_steps_on_graphs_are_not_mixed_with_prompts(
    topk: int, sections: dict[str, dict[str, object]], checkpoints
) -> None:
    core = build(checkpoints, "STANDALONE", topk, **sections)
    answer(core)
    assert core.counters.mixed_steps == 0
