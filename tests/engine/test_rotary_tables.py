"""Requests on both sides of a rotary threshold in one batch: text, prefix cache and preemption."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from checks.lossless.families import LONGROPE, SHORT_TEXT, make_family
from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.engine import EngineCore
from tests.engine.checkpoints import Checkpoints
from tests.engine.whole_engine import boot_of, requests_of, run, tokens_of

MAX_TOKENS = 16
SHORT, LONG = 19 + MAX_TOKENS, 28 + MAX_TOKENS
"""Tokens of the first and of the last request of `requests_of(97, 4, MAX_TOKENS)`."""
DYNAMIC = {"rope_type": "dynamic", "factor": 8.0, "rope_theta": 10_000.0}


@pytest.fixture(scope="module")
def longrope(checkpoints: Checkpoints, tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """A target with two tables, and a draft whose tables are for other lengths."""
    folder = tmp_path_factory.mktemp("longrope")
    target = make_family(LONGROPE, checkpoints.target, folder / "target")
    return replace(checkpoints, target=target, draft=dynamic(checkpoints.draft, folder / "draft"))


def dynamic(llama: Path, into: Path) -> Path:
    """Copy a checkpoint; its frequencies are those of texts of 16, 32, 64 ... tokens."""
    shutil.copytree(llama, into)
    keys = json.loads((into / "config.json").read_text())
    keys |= {"rope_parameters": DYNAMIC, "max_position_embeddings": 16}
    (into / "config.json").write_text(json.dumps(keys))
    return into


def make_core(
    checkpoints: Checkpoints, algorithm: str = "NONE", topk: int = 1, **sections: Any
) -> EngineCore:
    memory = {"page_size": 4, **sections.pop("memory", {})}
    boot = boot_of(checkpoints, algorithm, topk, memory=memory, **sections)
    return build_poisoned(EngineBoot.model_validate(boot))


@pytest.fixture(scope="module")
def alone(longrope: Checkpoints) -> Mapping[str, list[int]]:
    """Plain text of each request, computed alone on a new engine."""
    core = make_core(longrope, memory={"prefix_cache": False})
    texts = [run(core, [request]) for request in requests_of(97, 4, MAX_TOKENS)]
    return {name: answer.tokens for one in texts for name, answer in one.items()}


def greedy(network: Any, prompt: tuple[int, ...], tables_of: int) -> list[int]:
    """Decode with transformers' model, whose angles are those of a text of `tables_of` tokens."""
    tokens = list(prompt)
    for _ in range(MAX_TOKENS):
        padded = tokens + [0] * (tables_of - len(tokens))
        with torch.no_grad():
            tokens.append(int(network(torch.tensor([padded])).logits[0, len(tokens) - 1].argmax()))
    return tokens[len(prompt) :]


def plain(request: Request) -> Request:
    """The same prompt, greedy."""
    return replace(request, sampling=SamplingParams(0, MAX_TOKENS, 0.0, ignore_eos=True))


def test_both_sides_in_one_batch_have_the_text_of_transformers(longrope: Checkpoints) -> None:
    assert SHORT <= SHORT_TEXT < LONG
    network = transformers.AutoModelForCausalLM.from_pretrained(longrope.target)
    requests = [plain(request) for request in requests_of(97, 4, MAX_TOKENS)]
    answers = tokens_of(run(make_core(longrope), requests))
    for request in (requests[0], requests[3]):
        length = len(request.prompt_ids) + MAX_TOKENS
        assert answers[request.request_id] == greedy(network, request.prompt_ids, length)


def test_dynamic_angles_are_those_of_the_next_power(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    target = dynamic(checkpoints.target, tmp_path / "target")
    network = transformers.AutoModelForCausalLM.from_pretrained(target)
    requests = [plain(request) for request in requests_of(97, 5, MAX_TOKENS)[::2]]
    model = {"path": str(target), "dtype": "float32", "context_length": 100}
    answers = tokens_of(run(make_core(checkpoints, model=model), requests))
    for request in requests:
        assert answers[request.request_id] == greedy(network, request.prompt_ids, 64)


@pytest.mark.parametrize(
    ("algorithm", "topk", "graphs"),
    [
        ("NONE", 1, "off"),
        ("STANDALONE", 1, "off"),
        ("STANDALONE", 3, "static"),
        ("EAGLE3", 3, "off"),
    ],
)
def test_text_is_that_of_each_request_alone(
    longrope: Checkpoints, alone: Mapping[str, list[int]], algorithm: str, topk: int, graphs: str
) -> None:
    core = make_core(longrope, algorithm, topk, graphs={"mode": graphs})
    answers = run(core, requests_of(97, 4, MAX_TOKENS), preempted_at_step=6)
    assert tokens_of(answers) == alone
    assert core.scheduler.preempted_total == 1
    again = run(core, requests_of(97, 4, MAX_TOKENS))
    assert tokens_of(again) == alone
    assert core.scheduler.cache.hit_tokens > 0
    if graphs == "static":
        assert core.snapshot().graphs.graph_steps > 0


def test_a_draft_with_tables_of_its_own_is_as_good_in_any_batch(longrope: Checkpoints) -> None:
    """The same model as a draft accepts everything, whichever table a request has."""
    core = make_core(replace(longrope, draft=longrope.target), "STANDALONE")
    sampling = SamplingParams(0, 1 + 2 * 4, 0.0, ignore_eos=True)
    run(core, [replace(one, sampling=sampling) for one in requests_of(97, 7, 1)])
    decode = core.counters.decode
    assert decode.accepted_tokens == decode.drafted_tokens > 0


def test_keys_of_another_table_are_not_shared(longrope: Checkpoints) -> None:
    core = make_core(longrope)
    (request,) = requests_of(97, 1, 1)
    short, long = (SamplingParams(0, n, 0.0, ignore_eos=True) for n in (4, SHORT_TEXT))
    cached = []
    for number, sampling in enumerate((short, long, short, long)):
        core.submit(replace(request, request_id=str(number), sampling=sampling))
        outputs = []
        while core.has_work():
            outputs += core.step()
        core.scheduler.check()
        cached.append(outputs[-1].cached_tokens)
    assert cached == [0, 0, 16, 16]
