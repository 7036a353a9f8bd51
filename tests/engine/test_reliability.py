"""Failures that other engines have had (R numbers of the research), each as a test of its own."""

import random
from pathlib import Path

import pytest

from checks.lossless.poison import build_poisoned
from checks.lossless.run import RandomNumSteps
from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import Output, Request, SamplingParams
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.layers.repeated_weights import COMPARED_BYTES
from specdecode_engine.startup.memory import MemoryDemand, NotEnoughMemory, plan_memory

DRAFTS = ("STANDALONE", "EAGLE3")


def make_core(
    checkpoints, algorithm: str, pool_tokens: int | None = None, **changes: object
) -> EngineCore:
    folder: Path = {"STANDALONE": checkpoints.draft, "EAGLE3": checkpoints.eagle3}.get(
        algorithm, checkpoints.target
    )
    speculation: dict[str, object] = {}
    if algorithm != "NONE":
        speculation = {"algorithm": algorithm, "draft_path": str(folder), "num_steps": 3}
        speculation |= {name: changes.pop(name) for name in ("topk", "table") if name in changes}
    document = {
        "model": {"path": str(checkpoints.target), "context_length": 128},
        "speculation": speculation,
        "memory": {"page_size": changes.pop("page_size", 4)},
        "scheduling": {"max_running_requests": 32, **changes},
        "device": "cpu",
    }
    boot = EngineBoot.model_validate(document)
    return build_poisoned(boot, pool_tokens)


def make_request(name: str, prompt: int, answer: int, **sampling: object) -> Request:
    ids = tuple((7 * place + len(name) * 13 + prompt) % 97 for place in range(prompt))
    params = {"seed": 3, "max_tokens": answer, "temperature": 0.0, "ignore_eos": True, **sampling}
    return Request(name, ids, SamplingParams(**params))  # type: ignore[arg-type]


def run(core: EngineCore, *requests: Request) -> dict[str, list[Output]]:
    outputs: dict[str, list[Output]] = {request.request_id: [] for request in requests}
    for request in requests:
        core.submit(request)
    while core.has_work():
        for output in core.step():
            outputs[output.request_id].append(output)
        core.scheduler.check()
    return outputs


def tokens_of(outputs: list[Output]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def demand(**changes: int) -> MemoryDemand:
    values = {
        "available_bytes": 1_000_000,
        "weight_bytes": 5_000_000,
        "draft_weight_bytes": 1_000_000,
        "graph_bytes": 0,
        "fixed_bytes": 200_000,
        "page_bytes": 1_000,
        "page_size": 16,
        "most_rows": 10**9,
        "fewest_rows": 64,
    }
    return MemoryDemand(**{**values, **changes})


def test_r1_the_cache_gets_what_is_left_after_everything_else() -> None:
    assert plan_memory(demand(), None, 0.5).pages == 400
    assert plan_memory(demand(), 100_000, 0.5).pages == 100
    assert plan_memory(demand(most_rows=160), None, 0.5).pages == 11
    assert plan_memory(demand(), None, 0.5).kv_bytes <= 0.5 * 800_000
    assert plan_memory(demand(graph_bytes=100_000), None, 0.5).pages == 350


def test_r1_the_plan_is_a_table_of_everything_that_takes_memory() -> None:
    lines = plan_memory(demand(), None, 0.5).lines()
    for word in (
        "weights",
        "draft's weights",
        "scratch and logits",
        "CUDA graphs",
        "key-value cache",
        "400 pages",
    ):
        assert any(word in line for line in lines)


def test_r1_an_engine_that_does_not_fit_names_the_smallest_change_that_would(
    checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    available = "specdecode_engine.startup.build.available_bytes"
    monkeypatch.setattr(available, lambda device: 850_000 + 2 * COMPARED_BYTES)
    with pytest.raises(NotEnoughMemory, match=r"max_running_requests 4 would fit"):
        make_core(checkpoints, "EAGLE3")
    monkeypatch.setattr(available, lambda device: 1_000)
    with pytest.raises(NotEnoughMemory, match=r"give the engine more memory"):
        make_core(checkpoints, "EAGLE3")


def test_r1_what_does_not_fit_is_refused_with_the_numbers_and_a_remedy() -> None:
    with pytest.raises(NotEnoughMemory, match=r"5 pages.*available.*lower"):
        plan_memory(demand(available_bytes=203_000), None, 1.0)
    with pytest.raises(NotEnoughMemory, match=r"900000 is more than the 800000 bytes.*lower it"):
        plan_memory(demand(), 900_000, 0.5)


@pytest.mark.parametrize("algorithm", DRAFTS)
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_r5_a_text_may_end_at_any_place_around_a_page_and_the_context(
    checkpoints, algorithm: str, overlap: bool, page_size: int
) -> None:
    plain = make_core(checkpoints, "NONE")
    core = make_core(checkpoints, algorithm, overlap=overlap, page_size=page_size)
    for answer in (1, 15, 16, 17, 112):
        request = make_request(str(answer), 16, answer)
        expected = tokens_of(run(plain, request)[request.request_id])
        assert tokens_of(run(core, request)[request.request_id]) == expected
        assert len(expected) == answer


@pytest.mark.parametrize("algorithm", DRAFTS)
@pytest.mark.parametrize("topk", [1, 4])
def test_r11_logprobs_are_those_of_plain_decoding(checkpoints, algorithm: str, topk: int) -> None:
    request = make_request("r", 9, 30, logprobs=4, frequency_penalty=0.5, temperature=0.7)
    plain = run(make_core(checkpoints, "NONE"), request)["r"]
    drafted = run(make_core(checkpoints, algorithm, topk=topk), request)["r"]
    left = [record for output in plain for record in output.logprobs or ()]
    right = [record for output in drafted for record in output.logprobs or ()]
    assert len(left) == len(right) == 30
    for one, other in zip(left, right, strict=True):
        assert one.token_id == other.token_id
        assert [token for token, _ in one.top] == [token for token, _ in other.top]
        assert one.logprob == pytest.approx(other.logprob, abs=1e-5)


@pytest.mark.parametrize("algorithm", DRAFTS)
@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.2},
        {"temperature": 0.8, "top_k": 5},
        {"temperature": 1.0, "top_p": 0.7},
        {"temperature": 1.3, "min_p": 0.2},
        {"logit_bias": {3: 4.0, 11: -100.0}},
        {"repetition_penalty": 1.6},
        {"presence_penalty": 0.9},
        {"frequency_penalty": 0.9, "temperature": 0.9, "top_p": 0.9, "top_k": 20},
    ],
    ids=lambda sampling: "+".join(sampling),
)
def test_r13_every_sampling_parameter_gives_the_plain_text(
    checkpoints, algorithm: str, sampling: dict[str, object]
) -> None:
    requests = [make_request(str(n), 5 + n, 25, **sampling) for n in range(3)]
    plain = make_core(checkpoints, "NONE")
    expected = {r.request_id: tokens_of(run(plain, r)[r.request_id]) for r in requests}
    answers = run(make_core(checkpoints, algorithm, topk=3), *requests)
    assert {name: tokens_of(outputs) for name, outputs in answers.items()} == expected


@pytest.mark.parametrize("algorithm", DRAFTS)
@pytest.mark.parametrize("overlap", [False, True])
def test_r16_a_batch_that_shrinks_from_32_to_1(checkpoints, algorithm: str, overlap: bool) -> None:
    requests = [make_request(f"{n}", 4, 2 + 2 * n) for n in range(32)]
    plain = make_core(checkpoints, "NONE")
    expected = {r.request_id: tokens_of(run(plain, r)[r.request_id]) for r in requests}
    answers = run(make_core(checkpoints, algorithm, overlap=overlap), *requests)
    assert {name: tokens_of(outputs) for name, outputs in answers.items()} == expected


@pytest.mark.parametrize("algorithm", DRAFTS)
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("topk", [1, 3])
def test_r19_the_depth_may_change_at_every_round(
    checkpoints, algorithm: str, overlap: bool, topk: int
) -> None:
    """Depth 0 among them: the draft falls behind and catches up, further than its window too."""
    core = make_core(
        checkpoints,
        algorithm,
        overlap=overlap,
        topk=topk,
        table={"1": {"candidate_steps": [0, 1, 3, 7]}},
    )
    requests = [make_request(str(n), 6 + n, 100) for n in range(3)]
    plain = make_core(checkpoints, "NONE")
    expected = {r.request_id: tokens_of(run(plain, r)[r.request_id]) for r in requests}
    for depths in ((0, 1, 3, 7), (0, 0, 0, 0, 0, 0, 0, 0, 7)):
        core.scheduler.drafting.policy = RandomNumSteps(depths, seed=topk)
        answers = run(core, *requests)
        assert {name: tokens_of(outputs) for name, outputs in answers.items()} == expected


@pytest.mark.parametrize("algorithm", DRAFTS)
@pytest.mark.parametrize("overlap", [False, True])
def test_r4_forced_retract_and_abort_at_random_leak_nothing(
    checkpoints, algorithm: str, overlap: bool
) -> None:
    rng = random.Random(f"{algorithm}{overlap}")
    core = make_core(checkpoints, algorithm, pool_tokens=110, overlap=overlap, topk=2)
    requests = [make_request(f"{n}", rng.randint(1, 40), rng.randint(1, 60)) for n in range(40)]
    for request in requests:
        core.submit(request)
    while core.has_work():
        core.step()
        core.scheduler.check()
        if core.scheduler.running and rng.random() < 0.2:
            victim = rng.choice(core.scheduler.running)
            if rng.random() < 0.5:
                core.preempt(victim)
            else:
                core.abort(victim.request.request_id)
            core.scheduler.check()
    assert not core.scheduler.running
    assert not core.scheduler.waiting
    assert core.scheduler.available_pages == core.scheduler.pages.total
    assert core.scheduler.preempted_total > 0


def test_an_aborted_request_gives_no_output_not_even_what_was_collected_before(checkpoints) -> None:
    """Preempting another request collects what is in flight; an abort then drops its part."""
    core = make_core(checkpoints, "EAGLE3", overlap=True)
    for name in ("gone", "stays"):
        core.submit(make_request(name, 8, 40))
    for _ in range(4):
        core.step()
    core.preempt(core.scheduler.running[0])
    core.abort("gone")
    later = []
    while core.has_work():
        later += [output.request_id for output in core.step()]
    assert set(later) == {"stays"}
