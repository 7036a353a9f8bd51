"""Rows of prompts that nobody reads leave the last layer out but for keys and values."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from checks.lossless.families import make_family
from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.kv.kv_cache import RotaryRows
from specdecode_engine.model.kv.kv_views import KVView
from specdecode_engine.model.layers import layers
from specdecode_engine.model.layers.layers import Attention, DecoderLayer
from specdecode_engine.model.target.llama import Llama
from specdecode_engine.steps import prefill
from tests.engine.whole_engine import Answer, boot_of, requests_of, run

LAST = 2  # layer of the checkpoints


@pytest.fixture
def last_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows that each call of a last layer computes whole."""
    counted: list[int] = []
    in_one_call, by_ops = layers._map_fused, Attention.__call__

    def count_call(
        some: Sequence[DecoderLayer[Attention]],
        x: Tensor,
        rotary: RotaryRows,
        first: int,
        *more: Any,
    ) -> tuple[Sequence[Tensor], int]:
        streams, count = in_one_call(some, x, rotary, first, *more)
        if first <= LAST < first + count:
            counted.append(len(x))
        return streams, count

    def count_ops(part: Attention, x: Tensor, rotary: RotaryRows, layer: int, kv: KVView) -> Tensor:
        if layer == LAST:
            counted.append(len(x))
        return by_ops(part, x, rotary, layer, kv)

    monkeypatch.setattr(layers, "_map_fused", count_call)
    monkeypatch.setattr(Attention, "__call__", count_ops)
    return counted


def answers(
    checkpoints: Any, algorithm: str, left_out: int, monkeypatch: pytest.MonkeyPatch, **more: Any
) -> tuple[EngineCore, dict[str, Answer]]:
    monkeypatch.setattr(prefill, "MIN_LEFT_OUT", left_out)
    boot = boot_of(checkpoints, algorithm, 1)
    boot["memory"] = {"page_size": 4, "prefix_cache": False}
    core = build_poisoned(EngineBoot.model_validate(boot))
    requests = [
        replace(request, sampling=replace(request.sampling, **more))
        for request in requests_of(97, 6, max_tokens=5)
    ]
    return core, run(core, requests, preempted_at_step=6)


@pytest.mark.parametrize("algorithm", ["NONE", "NGRAM"])
@pytest.mark.parametrize("family", ["llama-longrope", "gemma2", "mistral", "qwen3_moe", "gpt_oss"])
def test_texts_and_logprobs_are_the_same_bits(
    checkpoints: Any, tmp_path: Any, family: str, algorithm: str, last_rows: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    target = make_family(family, checkpoints.target, tmp_path / "target")
    served = replace(checkpoints, target=target)
    core, whole = answers(served, algorithm, 10**9, monkeypatch)
    assert isinstance(core.context.target, Llama)
    assert len(core.context.target.layers) == LAST + 1
    rows = sum(last_rows)
    last_rows.clear()
    _, found = answers(served, algorithm, 1, monkeypatch)
    assert found == whole
    assert sum(last_rows) < rows


@pytest.mark.parametrize(
    ("algorithm", "sampling"),
    [("EAGLE", {}), ("EAGLE3", {}), ("NONE", {"prompt_logprobs": 1})],
)
def test_rows_that_are_read_are_computed(
    checkpoints: Any, algorithm: str, sampling: dict[str, Any], last_rows: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """By drafts that read what the last layer gives, and for the scores of a prompt."""
    _, whole = answers(checkpoints, algorithm, 10**9, monkeypatch, **sampling)
    rows = sum(last_rows)
    last_rows.clear()
    _, found = answers(checkpoints, algorithm, 1, monkeypatch, **sampling)
    assert found == whole
    assert sum(last_rows) == rows
