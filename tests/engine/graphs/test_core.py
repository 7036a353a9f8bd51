"""Graphs in a real engine: which steps use them, equal answers, budgets, new tables, failures."""

from collections import defaultdict
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_engine.adaptive.draft_evidence import FirstPosition
from specdecode_engine.adaptive.draft_health import DraftHealth
from specdecode_engine.adaptive.policy import AdaptivePolicy, Decision, Reason, StaticPolicy
from specdecode_engine.adaptive.table import BatchRange, RangeTable
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.batch.shapes import plain_forward
from specdecode_engine.cli.flags import parse_flags
from specdecode_engine.engine import EngineCore
from specdecode_engine.graphs import capturer
from specdecode_engine.graphs.cuda_graph import StaticGraph
from specdecode_engine.graphs.plan import GraphKey
from specdecode_engine.model.kv.kv_cache import KVCache
from specdecode_engine.speculate import block_drafter
from specdecode_engine.startup import config
from specdecode_engine.startup.config import GraphMode, GraphsUnavailable
from tests.engine.whole_engine import DRAFTS

TABLE = {"1": (1, 3, 6), "3": (0, 2), "6": (0,)}
SIZES = (1, 2, 4, 7)
MAX_RUNNING = 7


def make_core(
    checkpoints,
    algorithm: str = "EAGLE3",
    topk: int = 1,
    overlap: bool = False,
    num_steps: int = 3,
    policy: str = "ema",
    **graphs: object,
) -> EngineCore:
    document = {
        "model": {"path": str(checkpoints.target), "dtype": "float32"},
        "speculation": {
            "algorithm": algorithm,
            "draft_path": str(getattr(checkpoints, DRAFTS[algorithm])),
            "num_steps": num_steps,
            "topk": topk,
            "policy": policy,
            "table": {bound: {"candidate_steps": steps} for bound, steps in TABLE.items()},
        },
        "memory": {"page_size": 4},
        "scheduling": {"max_running_requests": MAX_RUNNING, "overlap": overlap},
        "graphs": {"mode": "static", "batch_sizes": SIZES, **graphs},
        "device": "cpu",
    }
    return build_poisoned(EngineBoot.model_validate(document))


class EveryNumSteps(StaticPolicy):
    """Takes the candidates of the batch's range in turn, routed as another policy routes."""

    def __init__(self, policy: AdaptivePolicy) -> None:
        super().__init__(0, policy.table)
        self.routing = policy.routing
        self.decided: list[tuple[int, int]] = []
        self._turns: dict[int, int] = {}

    def decide(self, batch_size: int, kv_tokens: int, prefill_s: float = 0.0) -> Decision:
        entry = self.routing.route(self.table, batch_size, None)
        turn = self._turns.get(batch_size, 0)
        self._turns[batch_size] = turn + 1
        steps = entry.candidate_steps[turn % len(entry.candidate_steps)]
        self.decided.append((steps, batch_size))
        return Decision(steps, entry.lower_bound, 0, Reason.STATIC)


def requests(count: int, max_tokens: int = 24) -> Iterator[Request]:
    for number in range(count):
        prompt = tuple((number * 31 + place * 7) % 97 for place in range(2 + 3 * number))
        sampling = SamplingParams(
            seed=number,
            max_tokens=max_tokens,
            temperature=0.8 * (number % 2),
            ignore_eos=True,
            logprobs=2,
        )
        yield Request(f"{count}/{number}", prompt, sampling)


def answers(core: EngineCore, *waves: int) -> dict[tuple[str, str], list[object]]:
    """Run waves of so many requests, one after the other; tokens and log-probabilities of each."""
    got: dict[tuple[str, str], list[object]] = defaultdict(list)
    for count in waves:
        for request in requests(count):
            core.submit(request)
        while core.has_work():
            for output in core.step():
                got[output.request_id, "tokens"] += output.token_ids
                got[output.request_id, "logprobs"] += output.logprobs or ()
            core.scheduler.check()
    return got


def force_every_num_steps(core: EngineCore) -> EveryNumSteps:
    core.scheduler.drafting.policy = depth = EveryNumSteps(core.scheduler.drafting.policy)
    return depth


EVERY_SIZE = range(1, MAX_RUNNING + 1)


@pytest.mark.parametrize(
    ("algorithm", "topk", "overlap"),
    [
        ("STANDALONE", 1, True),
        ("STANDALONE", 3, False),
        ("EAGLE", 2, True),
        ("EAGLE3", 1, False),
        ("DFLASH", 1, True),
        ("DFLASH", 3, False),
        ("DSPARK", 1, True),
        ("DSPARK", 3, False),
        ("PEAGLE", 1, True),
        ("PEAGLE", 3, False),
        ("FROZEN_KV_MTP", 1, False),
        ("FROZEN_KV_MTP", 3, True),
    ],
)
def test_no_reachable_pair_runs_eagerly_and_answers_are_the_same(
    checkpoints, algorithm: str, topk: int, overlap: bool
) -> None:
    captured = make_core(checkpoints, algorithm, topk, overlap)
    depth = force_every_num_steps(captured)
    got = answers(captured, *EVERY_SIZE)
    report = captured.context.graphs.report()
    assert report.eager_steps == {}
    assert report.graph_steps == len(depth.decided) == captured.counters.decode.steps > 60
    padded = {(steps, min(g for g in SIZES if g >= size)) for steps, size in depth.decided}
    planned = {(one.num_steps, size) for one in report.sets for size in one.batch_sizes}
    assert padded == planned
    assert len({steps for steps, _ in depth.decided}) == 5

    eager = make_core(checkpoints, algorithm, topk, overlap, mode="off")
    force_every_num_steps(eager)
    assert answers(eager, *EVERY_SIZE) == got
    assert eager.context.graphs.report().eager_steps == {"off": eager.counters.decode.steps}


@pytest.mark.parametrize(
    ("algorithm", "topk"),
    [("STANDALONE", 1), ("EAGLE", 3), ("EAGLE3", 1), ("DFLASH", 2), ("PEAGLE", 1)],
)
def test_padding_leaves_every_page_but_page_0_alone(
    checkpoints, monkeypatch: pytest.MonkeyPatch, algorithm: str, topk: int
) -> None:
    """After the same steps, both caches hold the same bits as without graphs."""
    # Graphs compute whole blocks: short ones could draft other tokens, whose rows remain.
    monkeypatch.setattr(block_drafter, "SHORT_BLOCKS_FROM", MAX_RUNNING + 1)
    captured = make_core(checkpoints, algorithm, topk)
    eager = make_core(checkpoints, algorithm, topk, mode="off")
    for core in (captured, eager):
        core.scheduler.drafting.policy = EveryNumSteps(captured.scheduler.drafting.policy)
    assert answers(captured, 3, 5) == answers(eager, 3, 5)
    for pool, expected in zip(pools_of(captured), pools_of(eager), strict=True):
        for own, plain in zip(parts(pool), parts(expected), strict=True):
            assert torch.equal(own[:, 4:].nan_to_num(nan=9.0), plain[:, 4:].nan_to_num(nan=9.0))
            assert plain[:, :4].isnan().all()
            assert not own[:, :4].isnan().all()


def parts(pool: KVCache) -> list[Tensor]:
    return [part for group in pool.groups for part in (group.k, group.v)]


def pools_of(core: EngineCore) -> tuple[KVCache, KVCache]:
    return core.context.pool, core.context.drafter._pool  # type: ignore[union-attr]


def test_graphs_ran_and_the_eager_forwards_did_not(
    checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fast path: every forward of a decode step goes through a graph."""
    core = make_core(checkpoints, policy="static")
    graphs = core.context.graphs
    core.submit(next(requests(1)))
    core.step()  # the prompt
    monkeypatch.setattr(graphs, "_functions", {})
    while core.has_work():
        core.step()
    assert graphs.report().graph_steps == core.counters.decode.steps > 0


def test_graph_sets_are_switched_by_reference_before_each_step(checkpoints) -> None:
    graphs = make_core(checkpoints).context.graphs
    first, other = graphs.activate(3, 1), graphs.activate(0, 5)
    assert first is not None
    assert other is not None
    assert graphs.activate(3, 1) is first
    assert graphs.activate(0, 7) is other
    assert first is not other
    assert graphs.uses_graphs
    assert (first.batch_size, other.batch_size) == (1, 7)
    assert graphs.activate(3, 5) is None
    assert not graphs.uses_graphs


def test_num_steps_share_graphs(checkpoints) -> None:
    graphs = make_core(checkpoints).context.graphs
    three, six = (graphs.activate(steps, 2) for steps in (3, 6))
    assert three is not None
    assert six is not None
    shared = three.graphs.keys() & six.graphs.keys()
    assert len(shared) == 3  # the widest catch-up and the first two draft steps
    assert all(three.graphs[shape] is six.graphs[shape] for shape in shared)


def test_the_num_steps_at_start_gets_no_more_than_its_ranges_reach(checkpoints) -> None:
    by_start = {
        start: make_core(checkpoints, num_steps=start).context.graphs.report() for start in (0, 3)
    }
    sets = [
        [(one.num_steps, one.batch_sizes) for one in report.sets] for report in by_start.values()
    ]
    # A batch of 3 is padded to 4, the range of which begins at 3; one of 5 is padded to 7.
    assert sets[0] == sets[1] == [(0, (4, 7)), (1, (1, 2)), (2, (4,)), (3, (1, 2)), (6, (1, 2))]


def test_a_batch_beyond_the_captured_sizes_is_counted_with_the_reason(checkpoints) -> None:
    core = make_core(checkpoints, batch_sizes=(1, 2))
    plain = make_core(checkpoints, mode="off")
    assert answers(core, 2, 3) == answers(plain, 2, 3)
    report = core.context.graphs.report()
    assert report.eager_steps["too_large"] > 0
    assert report.graph_steps > 0


def test_an_empty_list_captures_nothing(checkpoints) -> None:
    core = make_core(checkpoints, batch_sizes=())
    answers(core, 1)
    report = core.context.graphs.report()
    assert (report.pairs, report.shared_bytes, report.graph_steps) == (0, 0, 0)
    assert report.eager_steps["off"] > 0


def compare_with_eager(core: EngineCore, checkpoints, *waves: int) -> None:
    """Run the waves at every num_steps and compare with an engine without graphs."""
    eager = make_core(checkpoints, mode="off")
    eager.reload(core.scheduler.drafting.policy.table)
    for one in (core, eager):
        force_every_num_steps(one)
    assert answers(core, *waves) == answers(eager, *waves)


def test_pairs_beyond_the_time_at_start_are_captured_in_idle_steps_only(checkpoints) -> None:
    core = make_core(checkpoints, max_seconds=0)
    graphs = core.context.graphs
    full = make_core(checkpoints).context.graphs.report()
    report = graphs.report()
    assert (report.pairs, report.seconds, len(report.pending)) == (0, 0, full.pairs)
    assert all("graphs.max_seconds 0 were spent at start" in reason for reason in report.pending)

    compare_with_eager(core, checkpoints, *EVERY_SIZE)
    assert set(graphs.report().eager_steps) == {"pending"}, "no step captured anything"

    calls = 1
    while core.idle_step():
        calls += 1
    report = graphs.report()
    assert calls == sum(one.graphs for one in report.sets), "one graph in each idle step"
    assert (report.pairs, report.pending) == (full.pairs, ())
    assert not core.idle_step()
    graphs.reset_counts()
    compare_with_eager(core, checkpoints, *EVERY_SIZE)
    assert graphs.report().eager_steps == {}


def test_answers_do_not_change_while_pairs_are_being_captured(checkpoints) -> None:
    core = make_core(checkpoints, max_seconds=0)
    eager = make_core(checkpoints, mode="off")
    for one in (core, eager):
        force_every_num_steps(one)
    for size in EVERY_SIZE:
        for _ in range(3):
            core.idle_step()
        assert answers(core, size) == answers(eager, size)
    report = core.context.graphs.report()
    assert report.graph_steps > 0
    assert set(report.eager_steps) == {"pending"}


def test_an_idle_step_while_a_request_runs_is_an_error(checkpoints) -> None:
    core = make_core(checkpoints, max_seconds=0)
    core.submit(next(requests(1)))
    with pytest.raises(AssertionError, match="deferred work would delay a step"):
        core.idle_step()


def test_pairs_whose_buffers_exceed_the_bytes_run_eagerly_with_the_reason(checkpoints) -> None:
    full = make_core(checkpoints).context.graphs.report()
    core = make_core(checkpoints, max_bytes=full.num_bytes // 2)
    report = core.context.graphs.report()
    assert 0 < report.pairs < full.pairs
    assert report.num_bytes <= full.num_bytes // 2
    assert report.refused
    assert all("raise graphs.max_bytes" in reason for reason in report.refused)
    compare_with_eager(core, checkpoints, *EVERY_SIZE)
    assert set(core.context.graphs.report().eager_steps) == {"refused"}


def test_without_bytes_every_pair_is_refused(checkpoints) -> None:
    core = make_core(checkpoints, max_bytes=0)
    answers(core, 1)
    report = core.context.graphs.report()
    assert (report.pairs, report.num_bytes, len(report.refused)) == (0, 0, 9)
    assert set(report.eager_steps) == {"refused"}


def test_the_facts_contain_the_mode_and_the_captured_pairs(checkpoints) -> None:
    off, on = (make_core(checkpoints, mode=mode).facts for mode in ("off", "static"))
    assert (off["graphs"], off["captured_pairs"]) == ("off", 0)
    assert (on["graphs"], on["captured_pairs"]) == ("static", 9)


def test_a_new_table_is_followed_in_idle_steps(checkpoints) -> None:
    """New pairs are captured where the buffers suffice; old ones stay."""
    core = make_core(checkpoints)
    before = core.context.graphs.report()
    core.reload(RangeTable([BatchRange(1, (2,)), BatchRange(3, (1, 6)), BatchRange(5, (0,))]))
    report = core.context.graphs.report()
    assert report.pairs == before.pairs
    assert any(reason.startswith(f"{GraphKey(2, 1)} is captured when") for reason in report.pending)
    assert [reason.split(" runs")[0] for reason in report.refused] == [str(GraphKey(6, 4))]
    while core.idle_step():
        pass
    assert core.context.graphs.report().pending == ()
    compare_with_eager(core, checkpoints, *EVERY_SIZE)
    after = core.context.graphs.report()
    assert set(after.eager_steps) == {"refused"}
    assert after.pairs > before.pairs


def test_steps_of_an_unfit_draft_get_graphs_of_their_own_in_idle_steps(checkpoints) -> None:
    """Until then graphs that also keep hidden states do, and beyond those the steps are eager."""
    core = make_core(checkpoints)
    graphs = core.context.graphs
    with_hidden = graphs.activate(0, 7)
    graphs.replan(core.scheduler.drafting.policy, with_plain=True)
    assert graphs.activate(0, 7, is_plain=True) is with_hidden
    assert graphs.activate(0, 1, is_plain=True) is not None  # that of batch size 4
    while core.idle_step():
        """Capture them."""
    for size in SIZES:
        plain = graphs.activate(0, size, is_plain=True)
        assert plain is not None
        assert list(plain.graphs) == [plain_forward(size)]
    assert graphs.activate(0, 7) is with_hidden
    core.scheduler.drafting.health = health = DraftHealth()
    drafts = Decision(3, 1, 0, Reason.STATIC)
    core.judge_draft(drafts, FirstPosition(proposed=400, accepted=0, requests=24), 0.01)
    assert health.is_unfit
    graphs.reset_counts()
    compare_with_eager(core, checkpoints, *EVERY_SIZE)
    report = core.context.graphs.report()
    assert report.eager_steps == {}
    assert report.graph_steps == core.counters.decode.steps > 0


def test_the_report_contains_every_num_steps_with_its_time_and_memory(checkpoints) -> None:
    report = make_core(checkpoints).context.graphs.report()
    assert all(one.seconds > 0 and one.graphs > 0 for one in report.sets)
    assert report.num_bytes == report.shared_bytes > 0, "static graphs need no more than buffers"
    lines = report.lines()
    assert "num_steps  0" in lines[0]
    assert "batch sizes 4 7" in lines[0]
    assert "shared input and output buffers" in lines[-1]


class BreakingGraph(StaticGraph):
    """Fails from the third capture of an engine on, or runs out of memory in one."""

    made = 0
    error: Exception = RuntimeError("operation not permitted when stream is capturing")

    def __init__(self, shape, function, buffers) -> None:
        type(self).made += 1
        is_reached = self.made == 3 if isinstance(self.error, MemoryError) else self.made >= 3
        if is_reached:
            if isinstance(self.error, MemoryError):
                raise torch.OutOfMemoryError("CUDA out of memory")
            raise self.error
        super().__init__(shape, function, buffers)


def break_captures(monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
    monkeypatch.setattr(BreakingGraph, "made", 0)
    monkeypatch.setattr(BreakingGraph, "error", error or BreakingGraph.error)
    monkeypatch.setattr(capturer, "StaticGraph", BreakingGraph)


def test_mode_auto_serves_eagerly_when_a_capture_fails(checkpoints, monkeypatch, caplog) -> None:
    break_captures(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(config, "choose_graph_mode", lambda *_: GraphMode("static", "tried"))
        core = make_core(checkpoints, mode="auto")
    report = core.context.graphs.report()
    failure = "capturing failed: RuntimeError: operation not permitted when stream is capturing"
    assert report.failure == core.facts["graphs_reason"] == failure
    assert all(failure in reason for reason in report.refused)
    assert (report.pairs, report.pending, len(report.refused)) == (0, (), 9)
    assert failure in caplog.text
    compare_with_eager(core, checkpoints, 1, 4)
    assert set(core.context.graphs.report().eager_steps) == {"refused"}
    core.reload(RangeTable([BatchRange(1, (2,))]))
    assert not core.idle_step()
    assert core.context.graphs.report().pending == ()


def test_a_mode_by_name_ends_the_start_when_a_capture_fails(checkpoints, monkeypatch) -> None:
    break_captures(monkeypatch)
    with pytest.raises(
        GraphsUnavailable, match=r"graphs.mode static: capturing failed.*use graphs\.mode auto"
    ):
        make_core(checkpoints)


def test_a_failure_in_an_idle_step_leaves_the_engine_serving(checkpoints, monkeypatch) -> None:
    core = make_core(checkpoints, max_seconds=0)
    break_captures(monkeypatch)
    while core.idle_step():
        pass
    report = core.context.graphs.report()
    assert report.failure.startswith("capturing failed: RuntimeError")
    assert report.pending == ()
    compare_with_eager(core, checkpoints, 1, 4)


def test_a_pair_that_runs_out_of_memory_leaves_the_smaller_ones(checkpoints, monkeypatch) -> None:
    break_captures(monkeypatch, MemoryError())
    core = make_core(checkpoints)
    report = core.context.graphs.report()
    assert (report.failure, report.pairs, report.pending) == ("", 8, ())
    assert [reason.split(": ")[1].split(" (")[0] for reason in report.refused] == [
        "capturing it ran out of memory"
    ]
    compare_with_eager(core, checkpoints, *EVERY_SIZE)
    assert set(core.context.graphs.report().eager_steps) <= {"refused"}


def test_cuda_graphs_need_a_gpu(checkpoints) -> None:
    with pytest.raises(GraphsUnavailable, match=r"mode cuda needs a GPU.*runs on cpu"):
        make_core(checkpoints, mode="cuda")


def test_on_a_cpu_nothing_is_captured_under_mode_auto(checkpoints) -> None:
    report = make_core(checkpoints, mode="auto").context.graphs.report()
    assert (report.mode, report.pairs) == ("off", 0)


def test_flags() -> None:
    model = ["--model-path", "/m"]
    assert parse_flags(model).graphs.mode == "auto"
    assert parse_flags([*model, "--disable-cuda-graph"]).graphs.mode == "off"
    assert parse_flags([*model, "--cuda-graph-bs", "1", "8"]).graphs.batch_sizes == (1, 8)
    assert parse_flags([*model, "--cuda-graph-bs"]).graphs.batch_sizes == ()
