"""Speculative text against plain decoding, with drafts for a model of the zoo."""

from dataclasses import replace
from itertools import count, islice
from pathlib import Path

from lossless.cases import Material, draw_case
from lossless.compare import find_difference
from lossless.run import Models, build_plain, build_speculative, run_alone, run_case
from specdecode_api.boot import ModelImplementation
from specdecode_engine.batch.request import FinishReason
from specdecode_engine.engine import EngineCore
from specdecode_engine.startup.model_check import CheckOptions, check_pair

CASES = 3


def find_mismatch(
    models: Models, algorithm: str, plain: EngineCore, material: Material, seed: int
) -> str | None:
    """Run `CASES` random cases that draft; return the first difference from plain decoding."""
    drawn = (draw_case(number, seed, material) for number in count())
    with_draft_steps = (case for case in drawn if case.num_steps)
    for each in islice(with_draft_steps, CASES):
        case = replace(each, algorithm=algorithm)
        answers = run_case(build_speculative(case, models), case.requests)
        for request, answer in zip(case.requests, answers, strict=True):
            is_aborted = answer.finish_reason is FinishReason.ABORT
            expected = run_alone(plain, request)
            difference = find_difference(expected, answer, is_aborted, models.dtype)
            if difference is not None:
                return f"{algorithm}, case {case.number} of seed {seed}: {difference}"
    return None


def make_material(vocab: int) -> Material:
    """Prompts of 3 to 45 tokens."""
    prompts = tuple(
        tuple((number * 31 + place * 7) % vocab for place in range(3 + 6 * number))
        for number in range(8)
    )
    return Material(prompts, vocab)


def plain_engine(
    target: Path, drafts: dict[str, Path], implementation: ModelImplementation = "transformers"
) -> tuple[Models, EngineCore]:
    """Build the engine that answers are compared with; mixtures return the experts of tokens."""
    has_experts = check_pair(target, None, CheckOptions()).target.routed_bytes_per_token is not None
    models = Models(
        target, drafts, "float32", implementation=implementation, returns_experts=has_experts
    )
    return models, build_plain(models)
