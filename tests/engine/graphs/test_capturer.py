"""Order, measured bytes and seconds of captures, on a stream whose free memory is counted."""

from dataclasses import dataclass

import pytest
import torch

from specdecode_engine.batch.shapes import ForwardKind, ForwardShape
from specdecode_engine.graphs import capturer
from specdecode_engine.graphs.capturer import GraphCapturer
from specdecode_engine.graphs.cuda_graph import CaptureStream, StaticGraph
from specdecode_engine.graphs.plan import Budget, CaptureDecision, GraphKey, GraphPlan

MIB = 1 << 20
SIZES = (1, 2, 4)
STEPS = (0, 1, 2)


def verify(batch_size: int, num_steps: int) -> ForwardShape:
    return ForwardShape(ForwardKind.VERIFY, batch_size, num_steps + 1)


PAIRS = {
    GraphKey(steps, size): (verify(size, steps),)
    for size in reversed(SIZES)
    for steps in reversed(STEPS)
}
PLAN = GraphPlan(SIZES, PAIRS)
FEWER = GraphPlan(SIZES, {key: PAIRS[key] for key in tuple(PAIRS)[3:]})


@dataclass
class Device:
    """Memory and time that captures use up: each takes a MiB and half a second."""

    free: int = 100 * MIB
    now_s: float = 0.0
    captured: tuple[ForwardShape, ...] = ()


class CountedStream(CaptureStream):
    """The capture stream of a `Device`."""

    used: Device

    def free_bytes(self) -> int:
        return self.used.free


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()

    def capture(shape, function, buffers, where) -> StaticGraph:
        device.free -= MIB
        device.now_s += 0.5
        device.captured += (shape,)
        return StaticGraph(shape, function, buffers)

    monkeypatch.setattr(capturer, "CudaGraph", capture)
    monkeypatch.setattr(CountedStream, "used", device, raising=False)
    return device


def make(bench, device: Device, budget: Budget, plan: GraphPlan = PLAN) -> GraphCapturer:
    stream = CountedStream(torch.device("cpu"), None, (0, 0))  # type: ignore[arg-type]
    functions = {ForwardKind.VERIFY: bench.function}
    buffers = bench.buffers(*plan.forwards())
    dropped = [CaptureDecision(GraphKey(2, 8), "runs eagerly: too large")]
    return GraphCapturer(functions, plan, dropped, buffers, budget, stream, lambda: device.now_s)


def capture_at_start(one: GraphCapturer) -> list[GraphKey]:
    """Capture as the start does; the pairs in order."""
    keys = []
    while one.pending_pairs and one.has_start_time():
        if (captured := one.capture_next()) is not None:
            keys.append(captured[0])
    return keys


def test_everything_is_captured_the_largest_first(bench, device) -> None:
    one = make(bench, device, Budget())
    assert capture_at_start(one) == list(PAIRS)
    rows = [shape.total_rows for shape in device.captured]
    assert rows[0] == max(rows)
    assert (one.pending_pairs, one.failure) == (0, "")


def test_bytes_and_seconds_are_those_measured(bench, device) -> None:
    one = make(bench, device, Budget())
    capture_at_start(one)
    for report in one.reports():
        assert (report.graphs, report.num_bytes, report.seconds) == (3, 3 * MIB, 1.5)
        assert report.batch_sizes == SIZES


def test_captures_stop_at_the_measured_bytes(bench, device) -> None:
    shared = bench.buffers(*PLAN.forwards()).num_bytes
    one = make(bench, device, Budget(max_bytes=shared + 4 * MIB))
    assert capture_at_start(one) == list(PAIRS)[:4]
    decisions = {decision.key: decision for decision in one.decisions()}
    assert set(decisions) == {*list(PAIRS)[4:], GraphKey(2, 8)}
    assert not any(decision.is_pending for decision in decisions.values())
    assert "of graphs.max_bytes are spent; raise it" in str(decisions[GraphKey(0, 1)])


def test_the_last_graph_alone_may_exceed_the_bytes(bench, device) -> None:
    shared = bench.buffers(*PLAN.forwards()).num_bytes
    one = make(bench, device, Budget(max_bytes=shared + 1))
    assert len(capture_at_start(one)) == 1
    spent = shared + sum(report.num_bytes for report in one.reports())
    assert spent == shared + MIB


def test_captures_at_start_stop_at_the_measured_seconds(bench, device) -> None:
    one = make(bench, device, Budget(max_seconds=1.2))
    assert capture_at_start(one) == list(PAIRS)[:3]
    pending = [decision for decision in one.decisions() if decision.is_pending]
    assert [decision.key for decision in pending] == list(PAIRS)[3:]
    assert "captured when the engine is idle: graphs.max_seconds 1.2" in pending[0].reason


def test_idle_captures_go_on_within_the_bytes_whatever_the_seconds(bench, device) -> None:
    shared = bench.buffers(*PLAN.forwards()).num_bytes
    one = make(bench, device, Budget(shared + 6 * MIB, 1.0))
    assert len(capture_at_start(one)) == 2
    while one.pending_pairs:
        one.capture_next()
    assert len(device.captured) == 6
    assert not any(decision.is_pending for decision in one.decisions())


def test_a_new_table_is_pending_as_far_as_the_buffers_hold_it(bench, device) -> None:
    one = make(bench, device, Budget(), FEWER)
    capture_at_start(one)
    one.replan(PLAN)
    decisions = {decision.key: decision for decision in one.decisions()}
    assert set(decisions) == {GraphKey(0, 4), GraphKey(1, 4), GraphKey(2, 4), GraphKey(2, 8)}
    assert not any(decision.is_pending for decision in decisions.values())
    assert "until a restart" in decisions[GraphKey(1, 4)].reason

    large = make(bench, device, Budget())
    large.replan(FEWER)
    assert large.pending_pairs == len(FEWER.pairs)
    assert all(large.is_pending(key) for key in FEWER.pairs)
    assert "it is new in the table" in large.decisions()[0].reason
