"""A capture that fails costs CUDA graphs, not answers; it ends a start that requires graphs."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from specdecode_api.report import TerminationReason
from specdecode_engine.engine import EngineCore
from specdecode_engine.process import termination_message_for
from specdecode_engine.serve.health import missed_graphs
from specdecode_engine.startup.config import GraphsUnavailable
from tests.engine.gpu_failures import break_capture, make_core, requests, tokens_on_the_cpu
from tests.engine.whole_engine import run, tokens_of
from tests.shadow_cuda.active import shadow_cuda
from tests.shadow_cuda.device import ShadowDevice

ERRORS: tuple[Callable[[], Exception], ...] = (
    lambda: RuntimeError("CUDA error: operation not permitted when stream is capturing"),
    lambda: torch.AcceleratorError("CUDA error: operation failed due to a previous error"),
    lambda: torch.OutOfMemoryError("CUDA out of memory"),
    lambda: KeyError("no kernel"),
)


@pytest.fixture
def gpu() -> Iterator[ShadowDevice]:
    with shadow_cuda() as device:
        yield device


@pytest.fixture(scope="module")
def wanted(checkpoints: Any) -> dict[str, list[int]]:
    return tokens_on_the_cpu(checkpoints)


def assert_serves(core: EngineCore, vocab: int, wanted: dict[str, list[int]]) -> None:
    assert tokens_of(run(core, requests(vocab))) == wanted


@pytest.mark.parametrize("error", ERRORS)
def test_an_engine_whose_first_capture_fails_serves_eagerly_under_auto(
    gpu: ShadowDevice, checkpoints: Any, wanted: Any, monkeypatch: pytest.MonkeyPatch, error: Any
) -> None:
    break_capture(monkeypatch, error)
    core = make_core(checkpoints, "cuda", "auto")
    assert_serves(core, checkpoints.vocab, wanted)
    report = core.context.graphs.report()
    assert report.failure.startswith("capturing ")
    assert str(error().args[0]) in report.failure
    assert (report.pairs, report.graph_steps) == (0, 0)
    assert (core.facts["graphs"], core.facts["graphs_reason"]) == ("off", report.failure)
    assert report.failure in missed_graphs(report)
    assert gpu.pool_in_use is None, "allocations go to the graph's pool"


@pytest.mark.parametrize("error", ERRORS)
def test_a_failed_capture_ends_the_start_with_the_remedy_where_graphs_are_required(
    gpu: ShadowDevice, checkpoints: Any, monkeypatch: pytest.MonkeyPatch, error: Any
) -> None:
    break_capture(monkeypatch, error)
    with pytest.raises(GraphsUnavailable, match=r"capturing .*; use graphs\.mode auto or off") as e:
        make_core(checkpoints, "cuda", "cuda")
    assert termination_message_for(e.value).reason == TerminationReason.CANNOT_SERVE


def test_graphs_that_were_captured_before_a_failure_stay_in_use(
    gpu: ShadowDevice, checkpoints: Any, wanted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_capture(monkeypatch, lambda: RuntimeError("CUDA error: x"), number=2)
    core = make_core(checkpoints, "cuda", "auto")
    assert_serves(core, checkpoints.vocab, wanted)
    report = core.context.graphs.report()
    assert report.failure == "capturing failed: RuntimeError: CUDA error: x"
    assert report.pairs == 1, "the largest batch size is captured first"
    assert report.graph_steps > 0
    assert core.facts["graphs"] == "cuda"
    assert gpu.pool_in_use is None


def test_a_capture_that_fails_in_an_idle_step_costs_no_request(
    gpu: ShadowDevice, checkpoints: Any, wanted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = make_core(checkpoints, "cuda", "cuda", graphs={"max_seconds": 0})
    assert core.context.graphs.report().pending
    break_capture(monkeypatch, lambda: RuntimeError("CUDA error: x"))
    assert not core.idle_step()
    assert_serves(core, checkpoints.vocab, wanted)
    report = core.snapshot().graphs
    assert report.failure == "capturing failed: RuntimeError: CUDA error: x"
    assert set(report.eager_steps) == {"refused"}


def test_a_capture_that_cannot_begin_leaves_the_allocator_as_it_was(
    gpu: ShadowDevice, checkpoints: Any, wanted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(self: Any, pool: Any, capture_error_mode: str) -> None:
        gpu.pool_in_use = pool  # as torch 2.11: allocations are routed before the stream captures
        raise RuntimeError("CUDA error: stream capture is unsupported")

    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", begin)
    core = make_core(checkpoints, "cuda", "auto")
    assert gpu.pool_in_use is None
    assert_serves(core, checkpoints.vocab, wanted)
    assert "stream capture is unsupported" in core.context.graphs.report().failure


def test_an_engine_that_cannot_prepare_captures_serves_eagerly(
    gpu: ShadowDevice, checkpoints: Any, wanted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("CUDA error: no pool")

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", fail)
    core = make_core(checkpoints, "cuda", "auto")
    assert_serves(core, checkpoints.vocab, wanted)
    assert core.facts["graphs_reason"] == "preparing failed: RuntimeError: CUDA error: no pool"
    assert "no pool" in missed_graphs(core.context.graphs.report())
    with pytest.raises(GraphsUnavailable, match=r"no pool; use graphs\.mode auto"):
        make_core(checkpoints, "cuda", "cuda")


def test_a_device_that_failed_in_a_capture_ends_the_start(
    gpu: ShadowDevice, checkpoints: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Exception:
        gpu.failures.fail_launch()
        try:
            gpu.launch()
        except torch.AcceleratorError as error:
            return error
        raise AssertionError("the launch was to fail")

    break_capture(monkeypatch, fail)
    with pytest.raises(torch.AcceleratorError) as caught:
        make_core(checkpoints, "cuda", "auto")
    message = termination_message_for(caught.value)
    assert message.reason == TerminationReason.DEVICE_FAILED
    assert "an illegal memory access was encountered" in message.message
