"""The limit of draft steps that a request sets: it costs or saves time, and changes no token."""

from dataclasses import replace
from pathlib import Path

import pytest

from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_engine.adaptive.policy import Decision, Feedback, Reason, StaticPolicy
from specdecode_engine.batch.request import Output, Request, SamplingParams
from specdecode_engine.engine import EngineCore

TABLE = {"1": {"candidate_steps": [1, 3]}}


def boot(target: Path, **speculation: object) -> EngineBoot:
    document = {
        "model": {"path": str(target), "dtype": "float32"},
        "speculation": speculation,
        "memory": {"page_size": 4},
        "scheduling": {"max_running_requests": 4, "chunked_prefill_tokens": 8},
        "device": "cpu",
    }
    return EngineBoot.model_validate(document)


def own_draft(checkpoints, topk: int = 1, **speculation: object) -> EngineCore:
    """An engine whose draft is the target: every draft token is right."""
    target = checkpoints.target
    settings = {"algorithm": "STANDALONE", "draft_path": str(target), "topk": topk, "num_steps": 3}
    return build_poisoned(boot(target, **settings, **speculation))


def request(name: str, max_steps: int | None, temperature: float = 0.0) -> Request:
    sampling = SamplingParams(seed=5, max_tokens=17, temperature=temperature, ignore_eos=True)
    return Request(name, (3, 14, 15, 92, 65), sampling, max_steps=max_steps)


def run(core: EngineCore, *requests: Request) -> dict[str, list[Output]]:
    for each in requests:
        core.submit(each)
    outputs: dict[str, list[Output]] = {each.request_id: [] for each in requests}
    while core.has_work():
        for output in core.step():
            outputs[output.request_id].append(output)
        core.scheduler.check()
    return outputs


def tokens(outputs: list[Output]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("topk", [1, 2])
def test_no_step_accepts_more_than_the_limit_and_the_tokens_stay(checkpoints, topk, temperature):
    plain = build_poisoned(boot(checkpoints.target))
    wanted = tokens(run(plain, request("plain", None, temperature))["plain"])
    limits = {"none": None, "zero": 0, "one": 1, "two": 2}
    requests = [request(name, limit, temperature) for name, limit in limits.items()]
    answers = run(own_draft(checkpoints, topk), *requests)
    most = {name: max(output.accepted for output in answers[name]) for name in limits}
    assert {name: tokens(answers[name]) for name in limits} == dict.fromkeys(limits, wanted)
    assert most["none"] == 3 or (topk == 2 and most["none"] == 2)
    assert (most["zero"], most["one"], most["two"]) == (0, 1, 2)


def test_a_batch_in_which_all_are_limited_drafts_less(checkpoints):
    core = own_draft(checkpoints, policy="static", table=TABLE)
    answers = run(core, request("a", 1), request("b", 2))
    drafted = {output.drafted for name in "ab" for output in answers[name] if output.decode_steps}
    assert drafted == {1}, "2 is not a candidate: the largest candidate below it drafts"
    assert core.counters.latest is not None
    assert core.counters.latest.reason is Reason.LIMIT


def test_without_a_candidate_that_small_the_smallest_drafts_in_vain(checkpoints):
    core = own_draft(checkpoints, policy="static", table=TABLE)
    answers = run(core, request("off", 0))["off"]
    assert {output.drafted for output in answers if output.decode_steps} == {1}
    assert {output.accepted for output in answers} == {0}


class Deepest(StaticPolicy):
    """Chooses the same draft steps as an adaptive policy may."""

    def decide(self, batch_size: int, kv_tokens: int, prefill_s: float = 0.0) -> Decision:
        return super().decide(batch_size, kv_tokens)._replace(reason=Reason.KEEP)


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4, 6, 9, 17])
def test_the_last_tokens_of_an_answer_are_drafted_no_deeper_than_it_is_long(
    checkpoints, max_tokens
):
    table = {"1": {"candidate_steps": [0, 1, 2, 3]}}
    core = own_draft(checkpoints, policy="static", table=table)
    core.scheduler.drafting.policy = Deepest(3, core.scheduler.drafting.policy.table)
    sampling = SamplingParams(seed=5, max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    asked = replace(request("r", None), sampling=sampling)
    wanted = tokens(run(build_poisoned(boot(checkpoints.target)), asked)["r"])
    outputs = run(core, asked)["r"]
    assert tokens(outputs) == wanted
    missing = max_tokens - 1  # the first token comes from the prompt
    for output in outputs[1:]:
        assert output.drafted == min(3, missing - 1)
        missing -= len(output.token_ids)
    assert missing == 0


class Listening(StaticPolicy):
    """Keeps what it is given to learn from."""

    def __init__(self, num_steps: int) -> None:
        super().__init__(num_steps)
        self.feedback: list[Feedback] = []

    def observe(self, feedback: Feedback) -> None:
        self.feedback.append(feedback)


def test_the_policy_does_not_learn_acceptance_from_limited_requests(checkpoints):
    core = own_draft(checkpoints)
    policy = Listening(3)
    core.scheduler.drafting.policy = policy
    run(core, request("free", None), request("limited", 1))
    assert len(policy.feedback) > 4
    for feedback in policy.feedback:
        assert set(feedback.accepted) <= {3}
    both = [feedback for feedback in policy.feedback if feedback.batch_size == 2]
    assert all(len(feedback.accepted) <= 1 for feedback in both)


def test_the_policy_learns_how_much_answers_have_decoded(checkpoints):
    core = own_draft(checkpoints)
    policy = core.scheduler.drafting.policy = Listening(3)
    lengths = {"long": 17, "short": 7, "middle": 11, "one": 1}
    requests = [
        replace(each, sampling=replace(each.sampling, max_tokens=lengths[each.request_id]))
        for each in (request(name, None) for name in lengths)
    ]
    run(core, *requests)
    ended = [tokens for feedback in policy.feedback for tokens in feedback.ended]
    assert ended == [6, 10, 16]  # the first token comes from the prompt


def test_a_preempted_request_keeps_its_limit(checkpoints):
    core = own_draft(checkpoints)
    wanted = tokens(run(own_draft(checkpoints), request("r", None))["r"])
    limited = replace(request("r", None), max_steps=1)
    core.submit(limited)
    outputs: list[Output] = []
    for number in range(200):
        if not core.has_work():
            break
        outputs += core.step()
        if number in (3, 6) and core.scheduler.running:
            core.preempt(core.scheduler.running[0])
    assert tokens(outputs) == wanted
    assert max(output.accepted for output in outputs) == 1
