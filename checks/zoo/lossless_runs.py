"""Speculative text against plain decoding, with drafts for a model of the zoo."""

from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path
from typing import Any

from checks.lossless.cases import Case, Material, draw_case
from checks.lossless.compare import find_difference
from checks.lossless.run import Answer, Models, build_plain, build_speculative, run_alone, run_case
from specdecode_api.boot import ModelImplementation
from specdecode_engine.batch.request import FinishReason
from specdecode_engine.engine import EngineCore
from specdecode_engine.startup.model_check import CheckOptions, check_pair

CASES = 3
ALL_GRAPHS: dict[str, Any] = {
    "graphs": "static",
    "graph_batch_sizes": None,
    "graph_max_bytes": None,
    "graph_max_seconds": 120.0,
}


@dataclass(frozen=True, slots=True)
class LosslessRuns:
    """Cases that drafted, up to the first difference from plain decoding (empty: none)."""

    cases: int
    drafted_tokens: int
    graph_steps: int  # by static graphs, as CUDA graphs are laid out
    difference: str = ""


def compare_texts(
    models: Models,
    algorithm: str,
    plain: EngineCore,
    material: Material,
    seed: int,
    *,
    most: int = CASES,
) -> LosslessRuns:
    """Run `most` random cases that draft, the first of them with static graphs."""
    drawn = (draw_case(number, seed, material) for number in count())
    with_draft_steps = (case for case in drawn if case.num_steps)
    drafted = graph_steps = 0
    for cases, each in enumerate(islice(with_draft_steps, most), start=1):
        case = replace(each, algorithm=algorithm)
        if algorithm == "NGRAM":
            case = replace(case, has_fallback=False, verify_tokens=None)
        if cases == 1:
            case = replace(case, **ALL_GRAPHS)
        core = build_speculative(case, models)
        difference = _first_difference(case, run_case(core, case.requests), plain, models)
        drafted += core.counters.decode.drafted_tokens
        graph_steps += core.context.graphs.report().graph_steps
        if difference:
            reason = f"{algorithm}, case {case.number} of seed {seed}: {difference}"
            return LosslessRuns(cases, drafted, graph_steps, reason)
    return LosslessRuns(most, drafted, graph_steps)


def _first_difference(
    case: Case, answers: list[Answer], plain: EngineCore, models: Models
) -> str | None:
    for request, answer in zip(case.requests, answers, strict=True):
        is_aborted = answer.finish_reason is FinishReason.ABORT
        difference = find_difference(run_alone(plain, request), answer, is_aborted, models.dtype)
        if difference is not None:
            return difference
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
