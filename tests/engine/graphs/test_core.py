"""Captured rounds in a real engine: which run, that they equal plain ones, budgets, new tables."""

from collections import defaultdict
from collections.abc import Iterator

import pytest
import torch

from specdecode_api import speculation
from specdecode_api.boot import EngineBoot
from specdecode_api.speculation import Policy
from specdecode_engine.build import build_core
from specdecode_engine.captures import GraphsUnavailable
from specdecode_engine.depth.decision import Decision, DepthPolicy, Reason
from specdecode_engine.depth.ranges import BatchRange, DepthTable
from specdecode_engine.depth.static import StaticDepth
from specdecode_engine.flags import parse_flags
from specdecode_engine.forward.kv_pool import KvPool
from specdecode_engine.graph_plan.plan import Pair
from specdecode_engine.loop import EngineCore
from specdecode_engine.request import Request, SamplingParams

TABLE = {"1": (1, 3, 6), "3": (0, 2), "6": (0,)}
SIZES = (1, 2, 4, 7)
MAX_RUNNING = 7
DRAFTS = {"STANDALONE": "draft", "EAGLE": "eagle", "EAGLE3": "eagle3"}


@pytest.fixture(autouse=True)
def _any_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculation, "AVAILABLE_POLICIES", frozenset(Policy))


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
    return build_core(EngineBoot.model_validate(document), poison=True)


class EveryDepth(StaticDepth):
    """Takes the candidates of the batch's range in turn, routed as another policy routes."""

    def __init__(self, policy: DepthPolicy) -> None:
        super().__init__(0, policy.table)
        self.routing = policy.routing
        self.decided: list[tuple[int, int]] = []
        self._turns: dict[int, int] = {}

    def decide(self, batch_size: int, kv_tokens: int) -> Decision:
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
    """Run waves of so many requests, one behind the other; tokens and log-probabilities of each."""
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


def force_every_depth(core: EngineCore) -> EveryDepth:
    core.scheduler.depth = depth = EveryDepth(core.scheduler.depth)
    return depth


EVERY_SIZE = range(1, MAX_RUNNING + 1)


@pytest.mark.parametrize(
    ("algorithm", "topk", "overlap"),
    [("STANDALONE", 1, True), ("STANDALONE", 3, False), ("EAGLE", 2, True), ("EAGLE3", 1, False)],
)
def test_no_reachable_pair_runs_eager_and_answers_are_the_same(
    checkpoints, algorithm: str, topk: int, overlap: bool
) -> None:
    captured = make_core(checkpoints, algorithm, topk, overlap)
    depth = force_every_depth(captured)
    got = answers(captured, *EVERY_SIZE)
    report = captured.parts.states.report()
    assert report.eager_rounds == {}
    assert report.captured_rounds == len(depth.decided) == captured.counters.decode.rounds > 60
    padded = {(steps, min(g for g in SIZES if g >= size)) for steps, size in depth.decided}
    planned = {(tier.num_steps, size) for tier in report.tiers for size in tier.batch_sizes}
    assert padded == planned
    assert report.switches > 10

    eager = make_core(checkpoints, algorithm, topk, overlap, mode="off")
    force_every_depth(eager)
    assert answers(eager, *EVERY_SIZE) == got
    assert eager.parts.states.report().eager_rounds == {"off": eager.counters.decode.rounds}


@pytest.mark.parametrize(("algorithm", "topk"), [("STANDALONE", 1), ("EAGLE", 3), ("EAGLE3", 1)])
def test_padding_leaves_every_page_but_page_0_alone(checkpoints, algorithm: str, topk: int) -> None:
    """After the same rounds, both caches hold the same bits as without captured passes."""
    captured = make_core(checkpoints, algorithm, topk)
    eager = make_core(checkpoints, algorithm, topk, mode="off")
    for core in (captured, eager):
        core.scheduler.depth = EveryDepth(captured.scheduler.depth)
    assert answers(captured, 3, 5) == answers(eager, 3, 5)
    for pool, expected in zip(pools_of(captured), pools_of(eager), strict=True):
        for own, plain in ((pool.k, expected.k), (pool.v, expected.v)):
            assert torch.equal(own[:, 4:].nan_to_num(nan=9.0), plain[:, 4:].nan_to_num(nan=9.0))
            assert plain[:, :4].isnan().all()
            assert not own[:, 0].isnan().any()
            assert own[:, 1:4].isnan().all()


def pools_of(core: EngineCore) -> tuple[KvPool, KvPool]:
    return core.parts.pool, core.parts.drafter._pool  # type: ignore[union-attr]


def test_captured_passes_ran_and_the_models_did_not(
    checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fast path: every pass of a decode round goes through a runner."""
    core = make_core(checkpoints, policy="static")
    states = core.parts.states
    core.submit(next(requests(1)))
    core.step()  # the prompt
    monkeypatch.setattr(states, "_functions", {})
    while core.has_work():
        core.step()
    assert states.report().captured_rounds == core.counters.decode.rounds > 0


def test_a_state_is_swapped_by_reference_before_each_round(checkpoints) -> None:
    states = make_core(checkpoints).parts.states
    first, other = states.activate(3, 1), states.activate(0, 5)
    assert states.activate(3, 2) is first
    assert states.activate(0, 7) is other
    assert first is not other
    assert (first.num_steps, other.num_steps) == (3, 0)
    assert first.tier_of(2) is first.tiers[1]
    assert first.tier_of(7) is first.tier_of(5) is None


def test_depths_share_runners(checkpoints) -> None:
    states = make_core(checkpoints).parts.states
    three, six = (states.activate(steps, 2).tier_of(2) for steps in (3, 6))
    assert three is not None
    assert six is not None
    shared = three.runners.keys() & six.runners.keys()
    assert len(shared) == 3  # the widest catch-up and the first two steps
    assert all(three.runners[shape] is six.runners[shape] for shape in shared)


def test_the_depth_at_start_gets_no_more_than_its_ranges_reach(checkpoints) -> None:
    by_start = {
        start: make_core(checkpoints, num_steps=start).parts.states.report() for start in (0, 3)
    }
    tiers = [
        [(tier.num_steps, tier.batch_sizes) for tier in report.tiers]
        for report in by_start.values()
    ]
    # A batch of 3 is padded to 4, the range of which begins at 3; one of 5 is padded to 7.
    assert tiers[0] == tiers[1] == [(0, (4, 7)), (1, (1, 2)), (2, (4,)), (3, (1, 2)), (6, (1, 2))]


def test_a_batch_beyond_the_captured_sizes_is_counted_with_the_reason(checkpoints) -> None:
    core = make_core(checkpoints, batch_sizes=(1, 2))
    plain = make_core(checkpoints, mode="off")
    assert answers(core, 2, 3) == answers(plain, 2, 3)
    report = core.parts.states.report()
    assert report.eager_rounds["too_large"] > 0
    assert report.captured_rounds > 0


def test_an_empty_list_captures_nothing(checkpoints) -> None:
    core = make_core(checkpoints, batch_sizes=())
    answers(core, 1)
    report = core.parts.states.report()
    assert (report.pairs, report.shared_bytes, report.captured_rounds) == (0, 0, 0)
    assert report.eager_rounds["off"] > 0


def test_what_time_does_not_allow_is_captured_at_its_first_use(checkpoints) -> None:
    core = make_core(checkpoints, max_seconds=0)
    states = core.parts.states
    assert states.report().pairs == 0
    assert all("captured when it is first used" in reason for reason in states.report().lazy)
    force_every_depth(core)
    plain = make_core(checkpoints, mode="off")
    force_every_depth(plain)
    assert answers(core, *EVERY_SIZE) == answers(plain, *EVERY_SIZE)
    report = states.report()
    assert report.eager_rounds == {}
    assert report.lazy == ()
    assert report.pairs == make_core(checkpoints).parts.states.report().pairs


def test_what_memory_does_not_allow_runs_eager_with_the_reason(checkpoints) -> None:
    full = make_core(checkpoints).parts.states.report()
    core = make_core(checkpoints, max_bytes=full.num_bytes // 2)
    report = core.parts.states.report()
    assert 0 < report.pairs < full.pairs
    assert report.num_bytes <= full.num_bytes // 2
    assert report.refused
    assert all("of graphs.max_bytes are left" in reason for reason in report.refused)
    force_every_depth(core)
    plain = make_core(checkpoints, mode="off")
    force_every_depth(plain)
    assert answers(core, *EVERY_SIZE) == answers(plain, *EVERY_SIZE)
    eager = core.parts.states.report().eager_rounds
    assert set(eager) == {"refused"}


def test_no_memory_at_all_is_said_too(checkpoints) -> None:
    core = make_core(checkpoints, max_bytes=0)
    answers(core, 1)
    report = core.parts.states.report()
    assert (report.pairs, report.num_bytes, len(report.refused)) == (0, 0, 9)
    assert set(report.eager_rounds) == {"refused"}


def test_the_facts_say_what_is_captured(checkpoints) -> None:
    off, on = (make_core(checkpoints, mode=mode).facts for mode in ("off", "static"))
    assert (off["graphs"], off["captured_pairs"]) == ("off", 0)
    assert (on["graphs"], on["captured_pairs"]) == ("static", 9)


def test_a_new_table_is_followed(checkpoints) -> None:
    """New pairs are captured at first use where the buffers suffice; old ones stay."""
    core = make_core(checkpoints)
    before = core.parts.states.report()
    core.reload(DepthTable([BatchRange(1, (2,)), BatchRange(3, (1, 6)), BatchRange(5, (0,))]))
    report = core.parts.states.report()
    assert report.pairs == before.pairs
    assert any(reason.startswith(f"{Pair(2, 1)} is new") for reason in report.lazy)
    assert [reason.split(" is new")[0] for reason in report.refused] == [str(Pair(6, 4))]
    force_every_depth(core)
    plain = make_core(checkpoints, mode="off")
    plain.reload(core.scheduler.depth.table)
    force_every_depth(plain)
    assert answers(core, *EVERY_SIZE) == answers(plain, *EVERY_SIZE)
    after = core.parts.states.report()
    assert set(after.eager_rounds) == {"refused"}
    assert after.pairs > before.pairs


def test_the_report_names_every_depth_with_its_time_and_memory(checkpoints) -> None:
    report = make_core(checkpoints).parts.states.report()
    assert all(tier.seconds > 0 and tier.num_bytes > 0 for tier in report.tiers)
    assert report.num_bytes == report.shared_bytes + sum(t.num_bytes for t in report.tiers)
    lines = report.lines()
    assert "depth  0" in lines[0]
    assert "batch sizes 4 7" in lines[0]
    assert "shared inputs and outputs" in lines[-1]


def test_cuda_graphs_need_a_gpu(checkpoints) -> None:
    with pytest.raises(GraphsUnavailable, match=r"mode cuda needs a GPU.*computes on cpu"):
        make_core(checkpoints, mode="cuda")


def test_on_a_cpu_nothing_is_captured_unless_asked_for(checkpoints) -> None:
    report = make_core(checkpoints, mode="auto").parts.states.report()
    assert (report.mode, report.pairs) == ("off", 0)


def test_flags() -> None:
    model = ["--model-path", "/m"]
    assert parse_flags(model).graphs.mode == "auto"
    assert parse_flags([*model, "--disable-cuda-graph"]).graphs.mode == "off"
    assert parse_flags([*model, "--cuda-graph-bs", "1", "8"]).graphs.batch_sizes == (1, 8)
    assert parse_flags([*model, "--cuda-graph-bs"]).graphs.batch_sizes == ()
