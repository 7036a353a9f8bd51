"""Requests of one batch that verify different numbers of drafted nodes: texts stay, rows shrink."""

from typing import Any

import pytest
from torch import Tensor

from checks.lossless.poison import build_poisoned
from checks.lossless.verify_rows import RandomVerifyRows
from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.decode_inputs import DecodeInputs
from specdecode_engine.batch.sequence import Sequence
from specdecode_engine.batch.shapes import DraftShape, ForwardKind
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.target.llama import Llama
from tests.engine.whole_engine import Answer, boot_of, requests_of, run

TOKENS = 14


def build(checkpoints, algorithm: str, topk: int = 1, **sections: Any) -> EngineCore:
    """Half of the requests wait at first, so that prompts join batches that decode."""
    document = boot_of(checkpoints, algorithm, topk, **sections)
    document["scheduling"] = {"max_running_requests": 3, "chunked_prefill_tokens": 12} | (
        sections.get("scheduling", {})
    )
    return build_poisoned(EngineBoot.model_validate(document))


def answer(core: EngineCore) -> dict[str, Answer]:
    vocab = core.context.target.config.vocab_size
    return run(core, requests_of(vocab, 6, TOKENS), preempted_at_step=9)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def plain(checkpoints, request: pytest.FixtureRequest) -> tuple[dict[str, object], dict[str, Any]]:
    """The section `model` and what plain decoding writes."""
    model: dict[str, object] = {"path": str(checkpoints.target), "dtype": request.param}
    return model, answer(build(checkpoints, "NONE", model=model))


@pytest.mark.parametrize("overlap", [False, True], ids=["", "overlap"])
@pytest.mark.parametrize(
    ("algorithm", "topk"),
    [("STANDALONE", 1), ("STANDALONE", 3), ("EAGLE", 2), ("EAGLE3", 1), ("EAGLE3", 4)],
)
def test_answers_are_those_of_plain_decoding(
    checkpoints, plain: tuple[dict[str, object], dict[str, Any]], algorithm: str, topk: int,
    overlap: bool,
) -> None:  # fmt: skip
    model, wanted = plain
    core = build(checkpoints, algorithm, topk, model=model, scheduling={"overlap": overlap})
    core.choose_rows = RandomVerifyRows(topk)
    answers = answer(core)
    assert answers == wanted
    decode = core.counters.decode
    assert decode.accepted_tokens <= decode.verified_tokens < decode.drafted_tokens
    assert decode.verified_tokens > 0
    verified = core.counters.verify_rows
    assert verified.total() == decode.request_steps
    assert sum((rows - 1) * steps for rows, steps in verified.items()) == decode.verified_tokens
    assert len(verified) > 2
    assert topk > 1 or core.counters.mixed_steps > 3


@pytest.mark.parametrize("topk", [1, 2])
def test_a_cuda_graph_computes_every_node_and_accepts_only_verified_ones(
    checkpoints, topk: int
) -> None:
    graphs = {"graphs": {"mode": "static"}}
    wanted = answer(build(checkpoints, "NONE"))
    core = build(checkpoints, "STANDALONE", topk, **graphs)
    core.choose_rows = RandomVerifyRows(7)
    assert answer(core) == wanted
    assert core.context.graphs.report().graph_steps > 0
    assert core.counters.decode.verified_tokens < core.counters.decode.drafted_tokens


class CountedRows:
    """Chooses 1, 2, … nodes in turn, and keeps their sums."""

    def __init__(self) -> None:
        self.sums: list[int] = []

    def __call__(self, shape: DraftShape, sequences: tuple[Sequence, ...]) -> tuple[int, ...]:
        first = len(self.sums)
        chosen = [1 + (first + row) % shape.num_tokens for row in range(len(sequences))]
        self.sums.append(sum(chosen))
        return tuple(chosen)


@pytest.fixture
def forward_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of every forward of a Llama."""
    forward, rows = Llama.forward, list[int]()

    def counted(model: Llama, ids: Tensor, *arguments: Any) -> Any:
        rows.append(len(ids))
        return forward(model, ids, *arguments)

    monkeypatch.setattr(Llama, "forward", counted)
    return rows


@pytest.mark.parametrize("topk", [1, 2])
def test_the_forward_has_a_row_for_each_chosen_node_and_no_other(
    checkpoints, forward_rows: list[int], topk: int
) -> None:
    core = build(checkpoints, "EAGLE3", topk)  # the head has a class of its own
    core.choose_rows = chosen = CountedRows()
    for request in requests_of(core.context.target.config.vocab_size, 3, TOKENS):
        core.submit(request)
    while any(one.is_prefilling for one in core.scheduler.running) or core.scheduler.waiting:
        core.step()
    forward_rows.clear()
    chosen.sums.clear()
    while core.has_work():
        core.step()
    assert len(chosen.sums) > 3
    assert forward_rows == chosen.sums


def test_a_policy_that_chooses_too_many_rows_is_refused(checkpoints) -> None:
    core = build(checkpoints, "STANDALONE")
    core.choose_rows = lambda shape, sequences: (shape.num_tokens + 1,) * len(sequences)
    with pytest.raises(ValueError, match="correct the policy that chose them"):
        answer(core)


def test_drafted_and_verified_tokens_are_counted_by_range(checkpoints) -> None:
    core = build(checkpoints, "STANDALONE")
    core.choose_rows = lambda _, sequences: (2,) * len(sequences)
    answer(core)
    decode, ranges = core.counters.decode, core.counters.ranges.values()
    assert decode.drafted_tokens == 3 * decode.request_steps
    assert decode.verified_tokens == decode.request_steps
    assert sum(totals.verified_tokens for totals in ranges) == decode.verified_tokens
    assert decode.wasted_tokens == decode.drafted_tokens - decode.accepted_tokens


def test_a_draft_catches_up_on_no_more_rows_than_requests_verified(
    checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that verified one drafted node committed two tokens at most."""
    core = build(checkpoints, "STANDALONE")
    core.choose_rows = lambda _, sequences: (2,) * len(sequences)
    run_forward, widths = core.context.graphs.run, list[int]()

    def noted(kind: ForwardKind, inputs: DecodeInputs) -> Any:
        if kind is ForwardKind.CATCH_UP:
            widths.append(inputs.rows)
        return run_forward(kind, inputs)

    monkeypatch.setattr(core.context.graphs, "run", noted)
    answer(core)
    assert len(widths) > 5
    assert max(widths) == 2
