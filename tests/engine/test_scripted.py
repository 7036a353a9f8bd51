"""Drafts whose acceptance is chosen: exact accept lengths, and paths of every form."""

import itertools
from dataclasses import replace

import pytest

from checks.lossless.poison import build_poisoned
from checks.lossless.scripted import ScriptedDrafter
from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.engine import EngineCore

PROMPTS = [
    tuple((7 * n + 3 * place + n * place) % 97 for place in range(3 + 4 * n)) for n in range(4)
]
ANSWER_TOKENS = 31


def make_requests(temperature: float) -> list[Request]:
    return [
        Request(
            str(number),
            prompt,
            SamplingParams(
                seed=number,
                max_tokens=ANSWER_TOKENS,
                temperature=temperature,
                ignore_eos=True,
                frequency_penalty=0.3 * (number % 2),
                logprobs=number % 3 or None,
            ),
        )
        for number, prompt in enumerate(PROMPTS)
    ]


def make_core(checkpoints, page_size: int, overlap: bool, **speculation: object) -> EngineCore:
    document = {
        "model": {"path": str(checkpoints.target), "dtype": "float32"},
        "speculation": speculation,
        "memory": {"page_size": page_size},
        "scheduling": {"max_running_requests": 4, "overlap": overlap},
        "device": "cpu",
    }
    return build_poisoned(EngineBoot.model_validate(document))


def run(core: EngineCore, requests: list[Request]) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
    for request in requests:
        core.submit(request)
    while core.has_work():
        for output in core.step():
            tokens[output.request_id] += output.token_ids
        core.scheduler.check()
    return tokens


@pytest.fixture(scope="module", params=[0.0, 0.9], ids=["greedy", "sampled"])
def truth(checkpoints, request) -> tuple[list[Request], dict[str, list[int]]]:
    requests = make_requests(request.param)
    plain = make_core(checkpoints, 16, False)
    return requests, {r.request_id: run(plain, [r])[r.request_id] for r in requests}


def scripted(core: EngineCore, truth, right: float) -> EngineCore:
    requests, answers = truth
    texts = [[*request.prompt_ids, *answers[request.request_id]] for request in requests]
    drafter = ScriptedDrafter(core.context.table, texts, 97, right)
    core.context = replace(core.context, drafter=drafter)
    return core


GRID = list(itertools.product([1, 2, 4, 8], [1, 2, 16, 64], [1, 3, 6], [False, True]))


@pytest.mark.parametrize(("topk", "page_size", "num_steps", "overlap"), GRID)
def test_r3_half_right_trees_on_every_page_size_in_both_schedules(
    checkpoints, truth, topk: int, page_size: int, num_steps: int, overlap: bool
) -> None:
    core = make_core(
        checkpoints,
        page_size,
        overlap,
        algorithm="STANDALONE",
        draft_path=str(checkpoints.draft),
        topk=topk,
        num_steps=num_steps,
    )
    requests, answers = truth
    assert run(scripted(core, truth, right=0.6), requests) == answers
    if num_steps > 1:
        assert core.counters.decode.accepted_tokens > core.counters.decode.request_steps * 0.3


@pytest.mark.parametrize("topk", [1, 3])
@pytest.mark.parametrize("overlap", [False, True])
def test_r10_the_oracle_gives_steps_plus_one_and_the_adversary_one(
    checkpoints, truth, topk: int, overlap: bool
) -> None:
    requests, answers = truth
    lengths = {}
    for right in (1.0, 0.0):
        core = make_core(
            checkpoints,
            8,
            overlap,
            algorithm="STANDALONE",
            draft_path=str(checkpoints.draft),
            topk=topk,
            num_steps=4,
        )
        assert run(scripted(core, truth, right), requests) == answers
        lengths[right] = core.counters.decode.accept_length
    # 30 tokens after the first are 6 steps of 5; a coin's tokens after the text do not count.
    assert lengths == {1.0: 5.0, 0.0: 1.0}


def test_c4_results_are_as_wide_as_the_longest_path_not_as_the_tree(checkpoints, truth) -> None:
    core = make_core(
        checkpoints,
        8,
        False,
        algorithm="STANDALONE",
        draft_path=str(checkpoints.draft),
        topk=4,
        num_steps=2,
        num_draft_tokens=16,
    )
    widths = []
    append = core.context.table.append

    def spy(batch, tokens, accepted) -> None:
        widths.append(tokens.shape[1])
        append(batch, tokens, accepted)

    core.context.table.append = spy  # type: ignore[method-assign]
    requests, answers = truth
    assert run(scripted(core, truth, 0.7), requests) == answers
    assert set(widths) == {3}
