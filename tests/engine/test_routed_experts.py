"""The experts of every token equal those of plain decoding, however they came to be computed."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from checks.lossless.cases import Material, draw_case
from checks.lossless.compare import find_difference
from checks.lossless.families import EXPERTS, make_family
from checks.lossless.poison import build_poisoned
from checks.lossless.run import Answer, Models, build_plain, build_speculative, run_alone, run_case
from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import FinishReason, Request, SamplingParams
from specdecode_engine.engine import EngineCore
from specdecode_engine.startup.build import build_core
from specdecode_engine.startup.config import CannotServe

RUNS = (("qwen3_moe", "float32"), ("qwen3_moe", "bfloat16"), ("gpt_oss", "float32"))
SEED = 2
CASES = 11
TOP_K = 2
LAYERS = {"qwen3_moe": 2, "gpt_oss": 3}  # the first layer of a Qwen3-MoE is dense here


def make_folders(family: str, checkpoints: Any, folder: Path) -> dict[str, Path]:
    """A mixture as the target, another as its STANDALONE draft, and the EAGLE heads."""
    return {
        name: make_family(family, getattr(checkpoints, name), folder / name)
        for name in ("target", "draft")
    } | {"EAGLE": checkpoints.eagle, "EAGLE3": checkpoints.eagle3}


@pytest.fixture(scope="module")
def folders(checkpoints, tmp_path_factory) -> dict[str, Path]:
    return make_folders("qwen3_moe", checkpoints, tmp_path_factory.mktemp("mixtures"))


@pytest.fixture(scope="module", params=RUNS, ids="-".join)
def run(request) -> tuple[str, str]:
    """Family and type; gpt-oss has window pages."""
    family, dtype = request.param
    return family, dtype


@pytest.fixture(scope="module")
def models(run, checkpoints, tmp_path_factory) -> Models:
    family, dtype = run
    folders = make_folders(family, checkpoints, tmp_path_factory.mktemp(family))
    drafts = {"STANDALONE": folders["draft"], **folders}
    return Models(folders["target"], drafts, dtype, returns_experts=True)


@pytest.fixture(scope="module")
def plain(models) -> EngineCore:
    return build_plain(models)


@pytest.fixture(scope="module")
def seen() -> Iterator[dict[str, int]]:
    """What the drawn cases met, all of them together."""
    counts = {"preempted": 0, "cached": 0, "trees": 0, "chains": 0, "graphs": 0, "mixed": 0}
    yield counts
    assert all(counts.values()), counts


@pytest.mark.parametrize("number", range(CASES))
def test_they_equal_those_of_plain_decoding(
    number: int,
    run: tuple[str, str],
    models: Models,
    plain: EngineCore,
    checkpoints: Any,
    seen: dict[str, int],
) -> None:
    prompts = tuple(
        tuple((number * 31 + place * 7) % checkpoints.vocab for place in range(3 + 5 * number))
        for number in range(8)
    )
    case = draw_case(number, SEED, Material(prompts, checkpoints.vocab))
    core = build_speculative(case, models)
    answers = run_case(core, case.requests, case.preempted_at_steps)
    for request, answer in zip(case.requests, answers, strict=True):
        is_aborted = answer.finish_reason is FinishReason.ABORT
        expected = run_alone(plain, request)
        assert find_difference(expected, answer, is_aborted, models.dtype) is None
        assert expected.routed_experts is not None
        rows = len(request.prompt_ids) + max(len(expected.token_ids), 1) - 1
        assert expected.routed_experts.shape == (rows, LAYERS[run[0]], TOP_K)
        assert expected.routed_experts.max() < EXPERTS
    seen["preempted"] += core.scheduler.preempted_total
    seen["cached"] += core.scheduler.cache.hit_tokens
    seen["trees"] += case.topk > 1
    seen["chains"] += case.topk == 1 and case.num_steps > 0
    seen["graphs"] += core.context.graphs.report().graph_steps
    seen["mixed"] += core.counters.mixed_steps


def make_core(folders: dict[str, Path], page_size: int = 16, **model: object) -> EngineCore:
    document = {
        "model": {"path": str(folders["target"]), "dtype": "float32", **model},
        "memory": {"page_size": page_size},
        "scheduling": {"max_running_requests": 2, "chunked_prefill_tokens": 16},
        "device": "cpu",
    }
    return build_poisoned(EngineBoot.model_validate(document))


def answer(core: EngineCore, request: Request) -> Answer:
    found = Answer()
    core.submit(request)
    while core.has_work():
        for output in core.step():
            found.take(output)
    return found


def make_request(prompt: tuple[int, ...], **changes: Any) -> Request:
    sampling = SamplingParams(seed=1, max_tokens=9, temperature=0.0, ignore_eos=True)
    return replace(Request("r", prompt, sampling, return_routed_experts=True), **changes)


@pytest.mark.parametrize("implementation", ["native", "transformers"])
def test_they_are_the_best_of_transformers_router_logits(
    folders: dict[str, Path], implementation: str
) -> None:
    """Both implementations, on a prompt in three chunks and an answer."""
    core = make_core(folders, return_routed_experts=True, implementation=implementation)
    prompt = tuple((7 * place + place * place) % 97 for place in range(37))
    found = answer(core, make_request(prompt))
    model = AutoModelForCausalLM.from_pretrained(folders["target"], dtype=torch.float32)
    text = torch.tensor([[*prompt, *found.token_ids[:-1]]])
    with torch.no_grad():
        logits = model(text, output_router_logits=True).router_logits
    best = torch.stack([torch.topk(layer, TOP_K).indices for layer in logits], dim=1)
    assert found.routed_experts is not None
    assert found.routed_experts.dtype == np.uint8
    assert np.array_equal(found.routed_experts, best.numpy())


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_a_cached_prefix_has_them(folders: dict[str, Path], page_size: int) -> None:
    core = make_core(folders, page_size, return_routed_experts=True)
    prompt = tuple(range(5, 45))
    first = answer(core, make_request(prompt))
    again = answer(core, make_request(prompt))
    assert core.scheduler.cache.hit_tokens >= 32
    assert first.routed_experts is not None
    assert again.routed_experts is not None
    assert np.array_equal(first.routed_experts, again.routed_experts)


def test_nothing_is_kept_unless_the_engine_was_started_for_it(folders: dict[str, Path]) -> None:
    core = make_core(folders)
    assert core.context.routed is None
    assert all(experts.record is None for experts in core.context.target.mixtures)
    with pytest.raises(ValueError, match="start the engine with return_routed_experts"):
        core.submit(make_request((1, 2, 3)))


def test_only_requests_that_ask_get_them(folders: dict[str, Path]) -> None:
    core = make_core(folders, return_routed_experts=True)
    silent = answer(core, make_request((1, 2, 3), return_routed_experts=False))
    assert silent.token_ids
    assert silent.routed_experts is None


def test_a_dense_model_is_refused(checkpoints) -> None:
    document = {
        "model": {"path": str(checkpoints.target), "return_routed_experts": True},
        "device": "cpu",
    }
    with pytest.raises(CannotServe, match="has no layers with experts"):
        build_core(EngineBoot.model_validate(document))
