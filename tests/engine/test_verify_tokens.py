"""Steps that verify fewer tokens than they draft, divided by what the draft expects of them."""

from typing import Any

import pytest

from lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_engine.adaptive.table import BatchRange, RangeTable
from specdecode_engine.engine import EngineCore
from specdecode_engine.steps.in_flight import InFlightStep, StepResult
from tests.engine.whole_engine import Answer, boot_of, requests_of, run

TOKENS = 14


def build(checkpoints, algorithm: str, verify_tokens: int | None, **sections: Any) -> EngineCore:
    document = boot_of(checkpoints, algorithm, 1, **sections)
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
    sections = {"scheduling": {"overlap": overlap}, "graphs": {"mode": graphs}}
    core = build(checkpoints, algorithm, verify_tokens, **sections)
    assert answer(core) == plain
    decode = core.counters.decode
    assert decode.accepted_tokens <= decode.verified_tokens < decode.drafted_tokens
    if not overlap and graphs == "off":  # less at the ends of answers
        most = verify_tokens * decode.request_steps
        assert 0.7 * most < decode.verified_tokens <= most
    if graphs == "static":
        assert core.context.graphs.report().graph_steps > 0
    assert len(core.counters.verify_rows) > 1


@pytest.mark.parametrize("overlap", [False, True], ids=["", "overlap"])
@pytest.mark.parametrize("graphs", ["off", "static"])
def test_answers_in_bfloat16_are_those_of_plain_decoding(
    checkpoints, plain_bfloat16: dict[str, Answer], graphs: str, overlap: bool
) -> None:
    sections = {"graphs": {"mode": graphs}, "scheduling": {"overlap": overlap}}
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
