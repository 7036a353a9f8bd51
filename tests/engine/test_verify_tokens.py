"""Steps that verify fewer tokens than they draft, divided by what the draft expects of them."""

from typing import Any

import pytest

from checks.drafts_zoo.drafting import record_drafts
from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_engine.adaptive.goodput import GoodputPolicy
from specdecode_engine.adaptive.policy import Feedback, StaticPolicy
from specdecode_engine.adaptive.table import BatchRange, RangeTable
from specdecode_engine.engine import EngineCore
from specdecode_engine.steps.in_flight import InFlightStep, StepResult
from tests.engine.whole_engine import Answer, boot_of, requests_of, run

TOKENS = 14


def build(
    checkpoints, algorithm: str, verify_tokens: int | None, topk: int = 1, **sections: Any
) -> EngineCore:
    document = boot_of(checkpoints, algorithm, topk, **sections)
    document["scheduling"] = {"max_running_requests": 3, "chunked_prefill_tokens": 12} | (
        sections.get("scheduling", {})
    )
    if verify_tokens is not None:
        entry = {"candidate_steps": [3], "verify_tokens": verify_tokens}
        document["speculation"] |= {"table": {"1": entry}, "policy": "static"}
    return build_poisoned(EngineBoot.model_validate(document))


def answer(core: EngineCore) -> dict[str, Answer]:
    vocab = core.context.target.config.vocab_size
    return run(core, requests_of(vocab, 6, TOKENS), preempted_at_step=9)


def check_verified(core: EngineCore, verify_tokens: int, *, is_exact: bool) -> None:
    """A part of the drafts was verified; `is_exact`: as much as the table allows."""
    decode = core.counters.decode
    assert decode.accepted_tokens <= decode.verified_tokens < decode.drafted_tokens
    if is_exact:  # less at the ends of answers
        most = verify_tokens * decode.request_steps
        assert 0.7 * most < decode.verified_tokens <= most
    assert len(core.counters.verify_rows) > 1


@pytest.fixture(scope="module")
def plain(checkpoints) -> dict[str, Answer]:
    return answer(build(checkpoints, "NONE", None))


@pytest.fixture(scope="module")
def plain_bfloat16(checkpoints) -> dict[str, Answer]:
    model = {"path": str(checkpoints.target), "dtype": "bfloat16"}
    return answer(build(checkpoints, "NONE", None, model=model))


@pytest.mark.parametrize("graphs", ["off", "static"])
@pytest.mark.parametrize("overlap", [False, True], ids=["", "overlap"])
@pytest.mark.parametrize("verify_tokens", [1, 2])
@pytest.mark.parametrize("algorithm", ["STANDALONE", "EAGLE3", "DSPARK"])
def test_answers_are_those_of_plain_decoding(
    checkpoints, plain: dict[str, Answer], algorithm: str, verify_tokens: int,
    overlap: bool, graphs: str,
) -> None:  # fmt: skip
    sections: dict[str, Any] = {"scheduling": {"overlap": overlap}, "graphs": {"mode": graphs}}
    core = build(checkpoints, algorithm, verify_tokens, **sections)
    assert answer(core) == plain
    check_verified(core, verify_tokens, is_exact=not overlap and graphs == "off")
    if graphs == "static":
        assert core.context.graphs.report().graph_steps > 0


@pytest.mark.parametrize(
    ("algorithm", "topk", "verify_tokens", "graphs", "overlap"),
    [
        ("STANDALONE", 3, 2, "off", False),
        ("STANDALONE", 2, 4, "static", True),
        ("EAGLE", 4, 5, "off", True),
        ("EAGLE3", 4, 1, "static", False),
        ("EAGLE3", 3, 8, "static", True),
        ("FROZEN_KV_MTP", 2, 3, "static", True),
        ("DFLASH", 3, 4, "off", False),
        ("DSPARK", 3, 4, "static", True),
        ("PEAGLE", 2, 3, "static", False),
    ],
)
def test_answers_of_trees_are_those_of_plain_decoding(
    checkpoints, plain: dict[str, Answer], algorithm: str, topk: int, verify_tokens: int,
    graphs: str, overlap: bool,
) -> None:  # fmt: skip
    sections: dict[str, Any] = {"scheduling": {"overlap": overlap}, "graphs": {"mode": graphs}}
    core = build(checkpoints, algorithm, verify_tokens, topk, **sections)
    assert answer(core) == plain
    check_verified(core, verify_tokens, is_exact=not overlap and graphs == "off")
    assert (core.context.graphs.report().graph_steps > 0) == (graphs == "static")


@pytest.mark.parametrize("graphs", ["off", "static"])
@pytest.mark.parametrize(("algorithm", "topk"), [("EAGLE3", 1), ("EAGLE3", 3), ("DFLASH", 4)])
def test_the_best_nodes_of_all_requests_are_verified(
    checkpoints, verified_tokens: list[list[int]], algorithm: str, topk: int, graphs: str
) -> None:
    sections: dict[str, Any] = {"scheduling": {"overlap": False}, "graphs": {"mode": graphs}}
    core = build(checkpoints, algorithm, 2, topk, **sections)
    drafts = record_drafts(core)
    for request in requests_of(core.context.target.config.vocab_size, 3, 90):
        core.submit(request)
    while len(verified_tokens) < 12:
        core.step()
    for found in verified_tokens:  # the graphs of one, two and three requests have no padding
        of_step = [drafts.pop(0) for _ in found]
        ranked = sorted(
            (-score, place, number)
            for number, one in enumerate(of_step)
            for place, score in enumerate(one.scores)
        )
        chosen = [number for *_, number in ranked[: 2 * len(found)]]
        assert found == [chosen.count(number) for number in range(len(found))]
    assert {2, 3} <= {len(one) for one in verified_tokens}
    assert len({count for one in verified_tokens for count in one}) > 2


@pytest.mark.parametrize("overlap", [False, True], ids=["", "overlap"])
@pytest.mark.parametrize("graphs", ["off", "static"])
def test_answers_in_bfloat16_are_those_of_plain_decoding(
    checkpoints, plain_bfloat16: dict[str, Answer], graphs: str, overlap: bool
) -> None:
    sections: dict[str, Any] = {"graphs": {"mode": graphs}, "scheduling": {"overlap": overlap}}
    model = {"path": str(checkpoints.target), "dtype": "bfloat16"}
    core = build(checkpoints, "DSPARK", 1, model=model, **sections)
    assert answer(core) == plain_bfloat16
    assert core.counters.decode.verified_tokens > 0


@pytest.mark.parametrize("graphs", ["off", "static"])
def test_a_row_that_is_left_over_is_not_accepted(
    checkpoints, plain: dict[str, Answer], graphs: str
) -> None:
    """Requests may accept one drafted token, and two rows of each are to be verified."""
    core = build(checkpoints, "STANDALONE", 2, graphs={"mode": graphs})
    core.choose_rows = lambda _, sequences: (2,) * len(sequences)
    received = InFlightStep.collect
    longest = 0

    def noted(step: InFlightStep) -> StepResult:
        nonlocal longest
        result = received(step)
        if step.decision is not None:
            longest = max(longest, *map(len, result.token_ids), 0)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InFlightStep, "collect", noted)
        assert answer(core) == plain
    assert longest == 2


def test_a_new_table_divides_from_the_next_step_on(checkpoints, plain: dict[str, Answer]) -> None:
    core = build(checkpoints, "STANDALONE", None, graphs={"mode": "static"})
    num_steps = core.scheduler.drafting.policy.table.candidates()[-1]
    assert num_steps == 3
    core.reload(RangeTable([BatchRange(1, (num_steps,), verify_tokens=1)]))
    assert answer(core) == plain
    report, decode = core.context.graphs.report(), core.counters.decode
    assert decode.verified_tokens < 0.7 * decode.drafted_tokens
    assert report.eager_steps  # until an idle step captures what is new in the table
    while core.context.graphs.capture_next():
        pass
    before = core.context.graphs.report().graph_steps
    assert answer(core) == plain
    assert core.context.graphs.report().graph_steps > before


@pytest.mark.parametrize("topk", [1, 3])
def test_every_request_counts_in_the_acceptance_of_a_step(
    checkpoints, monkeypatch: pytest.MonkeyPatch, topk: int
) -> None:
    """Those that verified a part of their draft too, but for those that ended."""
    found = list[Feedback]()
    monkeypatch.setattr(StaticPolicy, "observe", lambda _, feedback: found.append(feedback))
    answer(build(checkpoints, "EAGLE3", 1, topk))
    assert len(found) > 10
    assert all(one.is_full for one in found)
    assert all(len(one.accepted) + len(one.ended) == one.batch_size for one in found)
    assert {0} < {count for one in found for count in one.accepted}


def test_steps_of_trees_that_verify_some_nodes_are_timed_apart(checkpoints) -> None:
    """Of 3 and 9 drafted tokens, at 1 and 3 draft steps."""
    document = boot_of(checkpoints, "EAGLE3", 3)
    entry: dict[str, Any] = {"candidate_steps": [0, 1, 3]}
    table = {"1": entry, "3": {**entry, "verify_tokens": 4}}
    document["speculation"] |= {"policy": "goodput", "table": table, "profile_seconds": 5}
    policy = build_poisoned(EngineBoot.model_validate(document)).scheduler.drafting.policy
    assert isinstance(policy, GoodputPolicy)
    timed = {(one.batch_size, one.num_steps, one.verify_tokens) for one in policy._points}
    assert {(1, 3, None), (2, 3, None), (4, 0, None), (4, 1, None), (4, 3, 4)} <= timed
    assert (4, 3, None) not in timed
    models = policy.cost, policy._learned[4].cost
    measured = [{steps for steps, cell in one.cells() if cell.is_measured} for one in models]
    assert measured == [{0, 1, 3}, {0, 1}]
