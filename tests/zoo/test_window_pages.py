"""Windows, chunks, shared layers and two head sizes in one cache: the text of small caches."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from checks.lossless.poison import build_poisoned
from checks.zoo.models import ZooModel
from specdecode_api.boot import EngineBoot
from specdecode_engine.engine import EngineCore
from tests.engine.whole_engine import requests_of, run
from tests.zoo.conftest import MakeModel

MAX_TOKENS = 24


def make_core(target: Path, memory: Mapping[str, int], **speculation: object) -> EngineCore:
    document: dict[str, Any] = {
        "model": {"path": str(target), "dtype": "float32"},
        "speculation": speculation,
        "memory": {"page_size": 4, **memory},
        "scheduling": {"max_running_requests": 3, "chunked_prefill_tokens": 10},
        "device": "cpu",
    }
    return build_poisoned(EngineBoot.model_validate(document))


@pytest.mark.parametrize("name", ["gemma3_text", "gemma4_text", "gpt_oss", "llama4_text"])
def test_text_is_the_same_in_fewer_window_pages(
    name: str, make_model: MakeModel, models: dict[str, ZooModel], tmp_path: Path
) -> None:
    target = make_model(name)[0]
    models[name].make(tmp_path / "draft", change=0.004)
    drafting = {"algorithm": "STANDALONE", "draft_path": str(tmp_path / "draft"), "topk": 3}
    requests = requests_of(97, 5, MAX_TOKENS)
    plain = make_core(target, {})
    wanted = {one.request_id: run(plain, [one])[one.request_id] for one in requests}
    large = make_core(target, {}, **drafting, num_steps=3).facts
    page_bytes = int(str(large["kv_cache_bytes"])) // int(str(large["kv_pages"]))
    core = make_core(target, {"kv_cache_bytes": 40 * page_bytes}, **drafting, num_steps=3)
    limits = core.scheduler.limits
    assert limits.window_pages < limits.pages
    for preempted_at_step in (5, 9):
        answers = run(core, requests, preempted_at_step=preempted_at_step)
        assert {key: answer.tokens for key, answer in answers.items()} == {
            key: answer.tokens for key, answer in wanted.items()
        }
    assert core.scheduler.cache.hit_tokens > 0
