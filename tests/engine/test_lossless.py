"""Speculative text equals plain text, over random engines, batches and parameters."""

from dataclasses import replace
from pathlib import Path

import pytest

from checks.lossless.cases import ALGORITHMS, MODULES, Material, draw_case
from checks.lossless.compare import find_difference
from checks.lossless.disturbances import Disturbances
from checks.lossless.mtp_module import write_mtp_modules
from checks.lossless.published import stored_as
from checks.lossless.run import Models, build_plain, build_speculative, run_alone, run_case, tuned
from specdecode_engine.batch.request import FinishReason, TokenLogprobs

SEED = 2
CASES = 12


@pytest.fixture(scope="module")
def models(checkpoints, tmp_path_factory) -> Models:
    folder = tmp_path_factory.mktemp("mtp")
    drafts = {
        "MTP": write_mtp_modules(checkpoints.target, folder / "module"),
        "MTP_CHAIN": write_mtp_modules(checkpoints.target, folder / "chain", MODULES),
        "STANDALONE": checkpoints.draft,
        "EAGLE": checkpoints.eagle,
        "EAGLE3": checkpoints.eagle3,
        "DFLASH": checkpoints.dflash,
        "DSPARK": checkpoints.dspark,
        "PEAGLE": checkpoints.peagle,
        "FROZEN_KV_MTP": checkpoints.frozen_kv_mtp,
    }
    return Models(checkpoints.target, drafts, "float32")


@pytest.fixture(scope="module")
def material(checkpoints) -> Material:
    prompts = tuple(
        tuple((number * 31 + place * 7) % checkpoints.vocab for place in range(3 + 5 * number))
        for number in range(8)
    )
    algorithms = (*ALGORITHMS, "MTP", "MTP_CHAIN", "FROZEN_KV_MTP", "DFLASH", "DSPARK", "PEAGLE")
    return Material(prompts, checkpoints.vocab, algorithms=algorithms)


@pytest.mark.parametrize("number", range(CASES))
def test_random_case(
    number: int, models: Models, material: Material, tmp_path_factory: pytest.TempPathFactory
) -> None:
    case = draw_case(number, SEED, material)
    folder = tmp_path_factory.getbasetemp() / "float8"
    models = stored_as(models, case.quantization, folder)
    plain = build_plain(models)
    with tuned(case.tuning):
        core = build_speculative(case, models)
        draft = models.drafts.get(case.algorithm)
        disturbances = Disturbances(f"{SEED}/{number}", core, draft)
        answers = run_case(core, case.requests, disturb=disturbances.before)
    for request, answer in zip(case.requests, answers, strict=True):
        is_aborted = answer.finish_reason is FinishReason.ABORT
        expected = run_alone(plain, request)
        assert find_difference(expected, answer, is_aborted, models.dtype) is None


def test_a_changed_token_is_noticed(models: Models, material: Material) -> None:
    """The comparison itself: one wrong token, finish reason or log-probability is a difference."""
    case = draw_case(3, SEED, material)
    plain = build_plain(models)
    answer = run_alone(plain, case.requests[0])
    other = run_alone(plain, case.requests[0])
    assert find_difference(answer, other, False, "float32") is None
    other.prompt_logprobs.append(TokenLogprobs(7, -1.0, ()))
    assert find_difference(answer, other, False, "float32") is not None
    answer.prompt_logprobs.append(TokenLogprobs(7, -1.0 - 1e-7, ()))
    assert find_difference(answer, other, False, "float32") is not None
    answer.prompt_logprobs[-1] = other.prompt_logprobs[-1]
    assert find_difference(answer, other, False, "float32") is None
    other.token_ids[-1] += 1
    assert find_difference(answer, other, False, "float32") is not None
    assert find_difference(answer, other, True, "float32") is not None


def test_the_same_seed_draws_the_same_case(material: Material) -> None:
    assert draw_case(5, 9, material) == draw_case(5, 9, material)
    assert draw_case(5, 9, material) != draw_case(5, 10, material)


def test_every_disturbance_happens(models: Models, material: Material) -> None:
    case = replace(draw_case(3, SEED, material), algorithm="EAGLE3", topk=1, num_draft_tokens=None)
    core = build_speculative(replace(case, has_fallback=False, verify_tokens=None), models)
    disturbances = Disturbances("0", core, models.drafts["EAGLE3"])
    disturbances._prepare()
    disturbances._steps = frozenset(range(300))
    answers = run_case(core, case.requests * 20, disturb=disturbances.before)
    assert {name.removeprefix("disturbed: ") for name in disturbances.seen} == {
        "reload", "run_out_of_memory", "exchange", "find_unfit", "find_fit", "probe",
    }  # fmt: skip
    assert core.counters.out_of_memory["retried"] > 0
    plain = [run_alone(build_plain(models), request) for request in case.requests]
    for number, answer in enumerate(answers):
        is_aborted = answer.finish_reason is FinishReason.ABORT
        expected = plain[number % len(plain)]
        assert find_difference(expected, answer, is_aborted, models.dtype) is None


def test_checkpoints_lie_where_the_run_expects_them() -> None:
    examples = Path(__file__).resolve().parents[2] / "examples" / "models"
    assert all(
        (examples / name / "config.json").exists()
        for name in ("target", "draft", "eagle", "eagle3")
    )
