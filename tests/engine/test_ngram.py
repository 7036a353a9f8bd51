"""NGRAM in a whole engine: the text of plain decoding, by every source, and what is counted."""

import itertools
from dataclasses import replace

import pytest

from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.engine import EngineCore
from specdecode_engine.speculate.ngram.proposer import FullProposer
from specdecode_engine.steps.in_flight import InFlightStep

PIECE = tuple((7 * place) % 97 for place in range(9))
PROMPTS = (PIECE * 3, PIECE[:4] * 5 + PIECE, (5,), tuple(range(30)))
SOURCES = (
    {"source": "suffix"},
    {"source": "suffix", "scope": "model", "capacity": 400},
    {"source": "prompt", "min_match": 1},
    {"source": "trie"},
    {"source": "trie", "scope": "model", "match": "PROB", "capacity": 300},
)


def make_requests(temperature: float) -> list[Request]:
    return [
        Request(
            str(number),
            prompt,
            SamplingParams(
                seed=number,
                max_tokens=28,
                temperature=temperature,
                ignore_eos=True,
                frequency_penalty=0.3 * (number % 2),
                logprobs=number % 3 or None,
            ),
            max_steps=2 if number == 1 else None,
        )
        for number, prompt in enumerate(PROMPTS)
    ]


def make_core(checkpoints, page_size=16, overlap=False, graphs="off", **speculation) -> EngineCore:
    document = {
        "model": {"path": str(checkpoints.target), "dtype": "float32"},
        "speculation": speculation,
        "memory": {"page_size": page_size},
        "scheduling": {"max_running_requests": 3, "overlap": overlap, "chunked_prefill_tokens": 16},
        "graphs": {"mode": graphs},
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
def truth(checkpoints, request):
    requests = make_requests(request.param)
    return requests, run(make_core(checkpoints), requests)


GRID = list(itertools.product(SOURCES, [1, 3], [(1, True), (16, False)], ["off", "static"]))


@pytest.mark.parametrize(("ngram", "topk", "place", "graphs"), GRID)
def test_every_source_gives_the_text_of_plain_decoding(
    checkpoints, truth, ngram, topk, place, graphs
) -> None:
    page_size, overlap = place
    requests, answers = truth
    core = make_core(
        checkpoints,
        page_size,
        overlap,
        graphs,
        algorithm="NGRAM",
        num_steps=5,
        topk=topk,
        ngram=ngram,
    )
    assert run(core, requests) == answers
    decode = core.counters.decode
    assert 0 < decode.drafted_tokens < decode.request_steps * (core.shapes[5].num_tokens - 1)
    assert 0 < core.counters.drafted_request_steps < decode.request_steps
    assert decode.verified_tokens == decode.drafted_tokens


def test_a_request_without_a_match_costs_plain_steps_and_is_no_evidence(checkpoints) -> None:
    table = {"1": {"candidate_steps": [0, 5]}}
    core = make_core(
        checkpoints,
        algorithm="NGRAM",
        num_steps=5,
        policy="goodput",
        profile_seconds=0,
        table=table,
        ngram={"source": "prompt", "min_match": 18},
    )
    run(core, [Request("0", PROMPTS[2], SamplingParams(0, 12, 0.0, ignore_eos=True))])
    assert core.counters.decode.verified_tokens == core.counters.drafted_request_steps == 0
    assert not any(one.reached for one in core.counters.positions.values())
    assert (1, 5) not in core.counters.buckets  # no step had the cost of five draft steps


def test_steps_between_two_searches_wait_for_no_tokens(checkpoints, monkeypatch) -> None:
    waits, received = list[InFlightStep](), InFlightStep.received

    def count(step: InFlightStep) -> dict[int, tuple[int, ...]]:
        waits.append(step)
        return received(step)

    monkeypatch.setattr(InFlightStep, "received", count)
    ngram = {"source": "prompt", "min_match": 18}
    core = make_core(checkpoints, overlap=True, algorithm="NGRAM", num_steps=5, ngram=ngram)
    run(core, [Request("0", PROMPTS[2], SamplingParams(0, 80, 1.5, ignore_eos=True))])
    assert core.counters.decode.drafted_tokens == 0
    assert 8 < len(waits) < core.counters.decode.steps / 2


def test_other_requests_do_not_change_the_drafts_of_a_request(checkpoints) -> None:
    settings = {"algorithm": "NGRAM", "num_steps": 4}
    alone, together = make_core(checkpoints, **settings), make_core(checkpoints, **settings)
    drafted = {}
    for core, requests in ((alone, make_requests(0.0)[:1]), (together, make_requests(0.0)[:3])):
        for request in requests:
            core.submit(request)
        drafted[core] = [
            (output.drafted, output.accepted)
            for _ in range(60)
            for output in core.step()
            if output.request_id == "0" and output.decode_steps
        ]
    assert drafted[alone] == drafted[together] != []


def test_texts_of_ended_requests_are_drafted_from_in_scope_model_alone(checkpoints) -> None:
    accepted = {}
    for scope in ("request", "model"):
        ngram = {"source": "suffix", "scope": scope}
        core = make_core(checkpoints, algorithm="NGRAM", num_steps=5, ngram=ngram)
        for name in ("first", "second"):
            before = core.counters.decode.accepted_tokens
            run(core, [Request(name, PROMPTS[3], SamplingParams(0, 28, 0.0, ignore_eos=True))])
            accepted[scope, name] = core.counters.decode.accepted_tokens - before
    assert accepted["request", "first"] == accepted["request", "second"]
    assert accepted["model", "second"] > accepted["model", "first"]


@pytest.mark.parametrize("topk", [1, 3])
def test_steps_that_are_timed_at_start_draft_as_much_as_fits(checkpoints, topk: int) -> None:
    core = make_core(checkpoints, algorithm="NGRAM", num_steps=4, topk=topk)
    core.context = replace(core.context, proposer=FullProposer())
    core.submit(Request("0", PROMPTS[3], SamplingParams(0, 40, 0.0, ignore_eos=True)))
    for _ in range(6):
        core.step()
    decode = core.counters.decode
    width = core.shapes[4].num_tokens - 1
    assert decode.verified_tokens == decode.request_steps * width > 0


def test_the_memory_of_sources_is_in_the_plan(checkpoints, caplog) -> None:
    caplog.set_level("INFO")
    make_core(checkpoints, algorithm="NGRAM", num_steps=4, ngram={"source": "trie"})
    assert any("NGRAM, on the host" in line for line in caplog.messages)
