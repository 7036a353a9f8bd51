"""Random cases with LoRA adapters: planted errors are found; a whole run has all combinations."""

from collections import Counter
from dataclasses import replace

import pytest

from checks.lossless.adapted import (
    FAULTS,
    LEAST_PAIRS,
    AdapterTally,
    material_of,
    plant,
    with_adapters,
    with_fault,
    write_adapters,
)
from checks.lossless.cases import Case, CaseRequest, Material, draw_case
from checks.lossless.compare import find_difference
from checks.lossless.run import Models, build_plain, build_speculative, run_alone, run_case
from tests.engine.checkpoints import Checkpoints

SEED = 5
CASES = 20


@pytest.fixture(scope="module")
def models(checkpoints: Checkpoints, tmp_path_factory: pytest.TempPathFactory) -> Models:
    adapters = write_adapters(checkpoints.target, tmp_path_factory.mktemp("adapters"))
    drafts = {"STANDALONE": checkpoints.draft, "EAGLE3": checkpoints.eagle3}
    return Models(checkpoints.target, drafts, "float32", adapters=adapters)


@pytest.fixture(scope="module")
def material(checkpoints: Checkpoints) -> Material:
    prompts = tuple(
        tuple((number * 31 + place * 7) % checkpoints.vocab for place in range(9 + 5 * number))
        for number in range(6)
    )
    return Material(prompts, checkpoints.vocab, algorithms=("STANDALONE", "EAGLE3", "NGRAM"))


def draw(number: int, material: Material, models: Models) -> Case:
    case = draw_case(number, SEED, material)
    case = with_adapters(case, SEED, models.adapters, share=1.0)
    requests = tuple(replace(one, aborted_at_step=None) for one in case.requests)
    return replace(case, requests=requests, quantization="auto")


@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_each_fault_is_found_within_a_few_cases(
    fault: str | None, models: Models, material: Material
) -> None:
    plain = build_plain(models)
    wrong = replace(models, adapters=with_fault(models.adapters, fault))
    for number in range(CASES if fault else CASES // 4):
        case = draw(number, material, models)
        core = build_speculative(case, wrong)
        plant(core, fault)
        answers = run_case(core, case.requests, case.preempted_at_steps)
        pairs = zip(case.requests, answers, strict=True)
        expected = [run_alone(plain, request) for request in case.requests]
        differ = [
            find_difference(one, answer, False, "float32")
            for one, (_, answer) in zip(expected, pairs, strict=True)
        ]
        if any(differ):
            assert fault is not None
            return
    assert fault is None


def test_a_whole_run_has_each_family_with_each_draft(material: Material) -> None:
    families = ("llama", "qwen2")
    pairs: Counter[tuple[str, str]] = Counter()
    for number in range(LEAST_PAIRS * len(families) * len(material.algorithms)):
        one = material_of(number, material, families)
        pairs[one.families[0], one.algorithms[0]] += 1
    assert {*pairs.values()} == {LEAST_PAIRS}
    assert len(pairs) == len(families) * len(material.algorithms)


def test_too_few_cases_are_named(material: Material) -> None:
    tally = AdapterTally()
    tally.pairs["llama x NGRAM"] = LEAST_PAIRS
    tally.seen["prefix hits"], tally.seen["preemptions"] = 49, 50
    tally.batches[1], tally.batches[2] = 1000, 49
    missing = tally.missing(("llama",), ("NGRAM", "EAGLE"))
    assert missing == ["llama x EAGLE", "prefix hits", "steps of several adapters"]


def test_cases_without_adapters_stay_as_they_are(material: Material) -> None:
    case = draw_case(3, SEED, material)
    assert with_adapters(case, SEED, ()) == case
    assert with_adapters(case, SEED, ("a",), share=0.0) == case


def test_pages_suffice_for_the_prompts_that_requests_get(material: Material) -> None:
    for number in range(40):
        case = draw_case(number, SEED, material)
        changed = with_adapters(case, SEED, ("a", "b"), share=1.0)
        assert changed.adapted
        assert changed.graphs == "off"
        assert changed.pool_tokens >= max(map(total_tokens, changed.requests))
        assert [one.sampling for one in changed.requests] == [one.sampling for one in case.requests]


def total_tokens(request: CaseRequest) -> int:
    return len(request.prompt_ids) + request.sampling.max_tokens
