"""Adaptive depth in the real core: crossing batch sizes, counting, and never another answer."""

import pytest

from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import FinishReason, Output, Request, SamplingParams
from specdecode_engine.engine import EngineCore
from specdecode_engine.stats.prometheus import EngineMetrics

MOST = 64
TABLE = {
    "1": {"candidate_steps": [0, 1, 3, 5], "update_interval": 1, "warmup_batches": 0},
    "8": {"candidate_steps": [0, 1], "update_interval": 1, "warmup_batches": 0},
    "32": {"candidate_steps": [0]},
}


def make_core(checkpoints, speculation: dict[str, object], **sections: object) -> EngineCore:
    document = {
        "model": {"path": str(checkpoints.target), "dtype": "float32", "context_length": 160},
        "speculation": speculation,
        "memory": {"page_size": 4, "prefix_cache": False},
        # However long steps take, a burst is admitted at once.
        "scheduling": {"max_running_requests": MOST, "prefill_delay_steps": 0, **sections},
        "device": "cpu",
        "threads": 1,
    }
    return build_poisoned(EngineBoot.model_validate(document))


def adaptive(checkpoints, policy: str, algorithm: str = "STANDALONE", **more: object):
    draft = checkpoints.draft if algorithm == "STANDALONE" else checkpoints.eagle3
    return {
        "algorithm": algorithm,
        "draft_path": str(draft),
        "num_steps": 3,
        "policy": policy,
        "profile_seconds": 0.2,
        "table": TABLE,
        **more,
    }


def request(name: str, tokens: int, seed: int = 0) -> Request:
    prompt = tuple(10 + (seed * 7 + place * 3) % 80 for place in range(5))
    temperature = 0.8 if seed % 2 else 0.0
    return Request(name, prompt, SamplingParams(seed, tokens, temperature, ignore_eos=True))


def answer(core: EngineCore, wanted: Request) -> tuple[int, ...]:
    core.submit(wanted)
    tokens: list[int] = []
    while core.has_work():
        tokens += [token for output in core.step() for token in output.token_ids]
    return tuple(tokens)


class Crossing:
    """One answer runs on while bursts of 63 others come and go."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.got: dict[str, list[int]] = {}
        self.ends: dict[str, FinishReason | None] = {}
        self.wanted: list[Request] = []

    def submit(self, wanted: Request) -> None:
        self.wanted.append(wanted)
        self.got[wanted.request_id] = []
        self.core.submit(wanted)

    def step(self) -> None:
        for output in self.core.step():
            self._take(output)
        self.core.scheduler.check()

    def _take(self, output: Output) -> None:
        self.got[output.request_id] += output.token_ids
        self.ends[output.request_id] = output.finish_reason

    def run(self, bursts: int) -> None:
        self.submit(request("long", 120))
        for burst in range(bursts):
            alone = len(self.got["long"]) + 8
            while len(self.got["long"]) < alone:
                self.step()
            for number in range(MOST - 1):
                self.submit(request(f"{burst}/{number}", 2 + number % 6, number))
            while len(self.core.scheduler.running) + len(self.core.scheduler.waiting) > 1:
                self.step()
        while self.core.has_work():
            self.step()


@pytest.mark.parametrize("overlap", [False, True], ids=["sync", "overlap"])
@pytest.mark.parametrize(
    ("policy", "algorithm"),
    [("goodput", "STANDALONE"), ("ema", "STANDALONE"), ("goodput", "EAGLE3")],
)
def test_load_that_crosses_every_boundary_loses_and_changes_nothing(
    checkpoints, policy: str, algorithm: str, overlap: bool
) -> None:
    speculation = adaptive(checkpoints, policy, algorithm)
    crossing = Crossing(make_core(checkpoints, speculation, overlap=overlap))
    crossing.run(bursts=2)
    plain = make_core(checkpoints, {})
    assert set(crossing.ends.values()) == {FinishReason.LENGTH}
    for wanted in (crossing.wanted[0], *crossing.wanted[1::9]):
        assert tuple(crossing.got[wanted.request_id]) == answer(plain, wanted)
    depths = crossing.core.counters.ranges
    assert set(depths) == {1, 8, 32}
    assert depths[32].drafted_tokens == 0 < depths[1].drafted_tokens


@pytest.mark.parametrize("policy", ["ema", "goodput"])
def test_what_a_range_did_is_counted_and_exported(checkpoints, policy: str) -> None:
    core = make_core(checkpoints, adaptive(checkpoints, policy))
    crossing = Crossing(core)
    crossing.run(bursts=1)
    counters = core.counters
    for name in ("steps", "request_steps", "drafted_tokens", "accepted_tokens"):
        parts = [getattr(totals, name) for totals in counters.ranges.values()]
        assert sum(parts) == getattr(counters.decode, name) > 0
    registry = EngineMetrics(core.snapshot).registry

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"specdecode_{name}", labels)

    for bound, totals in counters.ranges.items():
        where = {"batch_size": str(bound)}
        assert value("range_steps_total", **where) == totals.steps
        assert value("range_drafted_tokens_total", **where) == totals.drafted_tokens
        assert value("range_accepted_tokens_total", **where) == totals.accepted_tokens
        assert value("range_wasted_tokens_total", **where) == totals.wasted_tokens
        assert value("range_emitted_tokens_total", **where) == totals.emitted_tokens
        assert value("range_decode_seconds_total", **where) == pytest.approx(totals.seconds)
        assert value("range_num_steps", **where) in {0, 1, 3, 5}
    for (bound, reason), count in counters.switches.items():
        exported = value("num_steps_switches_total", batch_size=str(bound), reason=str(reason))
        assert exported == count > 0
    if policy == "ema":
        assert value("range_accepted_ema", batch_size="1") is not None
    else:
        assert value("range_survival", batch_size="1", position="1") is not None
        assert value("range_expected_tokens_per_second", batch_size="1", num_steps="0") is not None


def test_a_tree_is_adaptive_too(checkpoints) -> None:
    speculation = adaptive(checkpoints, "goodput", "EAGLE3", topk=3)
    core = make_core(checkpoints, speculation)
    assert {steps: shape.num_tokens for steps, shape in core.shapes.items()} == {
        0: 1, 1: 4, 3: 10, 5: 16,
    }  # fmt: skip
    assert core.scheduler.limits.max_draft_tokens == 16
    wanted = request("r", 60, 1)
    assert answer(core, wanted) == answer(make_core(checkpoints, {}), wanted)


def test_costs_are_measured_before_the_first_request(checkpoints) -> None:
    core = make_core(checkpoints, adaptive(checkpoints, "goodput", profile_seconds=5))
    cells = core.scheduler.drafting.policy.cost.cells()  # type: ignore[attr-defined]
    measured = {(cell.batch_size, steps) for steps, cell in cells if cell.is_measured}
    assert {(1, 0), (1, 1), (1, 3), (1, 5), (8, 0), (8, 1), (64, 0)} <= measured
    assert not {steps for size, steps in measured if size == 64} - {0}
    assert all(cell.seconds > 0 for _, cell in cells)
    assert core.counters.decode.steps == core.counters.prompt_tokens == 0
    assert not core.has_work()
    core.scheduler.check()
    assert core.scheduler.pages.free == core.scheduler.pages.total
