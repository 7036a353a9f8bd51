"""A step that runs out of the device's memory is retried for a smaller batch, with equal tokens."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from specdecode_api.metrics import core as metrics
from specdecode_engine.batch.request import FinishReason, Output
from specdecode_engine.engine import EngineCore
from specdecode_engine.steps.launch import Launcher
from tests.engine.gpu_failures import make_core, requests, tokens_on_the_cpu
from tests.shadow_cuda.active import shadow_cuda
from tests.shadow_cuda.device import ShadowDevice


@pytest.fixture
def gpu() -> Iterator[ShadowDevice]:
    with shadow_cuda() as device:
        yield device


@pytest.fixture(scope="module")
def wanted(checkpoints: Any) -> dict[str, list[int]]:
    return tokens_on_the_cpu(checkpoints)


def steps_of(core: EngineCore) -> Iterator[list[Output]]:
    while core.has_work():
        yield core.step()
        core.scheduler.check()


def tokens_by_request(outputs: list[Output]) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}
    for output in outputs:
        tokens.setdefault(output.request_id, []).extend(output.token_ids)
    return tokens


@pytest.mark.parametrize(("graphs", "overlap"), [("off", False), ("off", True), ("auto", True)])
@pytest.mark.parametrize(("step", "allocation"), [(1, 3), (4, 1), (4, 12), (4, 90)])
def test_a_step_that_runs_out_of_memory_is_retried_with_equal_tokens(
    gpu: ShadowDevice,
    checkpoints: Any,
    wanted: dict[str, list[int]],
    step: int,
    allocation: int,
    graphs: str,
    overlap: bool,
) -> None:
    scheduling = {"max_running_requests": 4, "chunked_prefill_tokens": 12, "overlap": overlap}
    core = make_core(checkpoints, "cuda", graphs, scheduling=scheduling)
    for request in requests(checkpoints.vocab):
        core.submit(request)
    outputs: list[Output] = []
    for number, arrived in enumerate(steps_of(core), start=1):
        outputs += arrived
        if number == step:
            gpu.failures.fail_allocation(allocation)
    assert tokens_by_request(outputs) == wanted
    assert core.snapshot()[metrics.OUT_OF_MEMORY_STEPS, "retried"] == 1
    assert core.snapshot()[metrics.OUT_OF_MEMORY_STEPS, "failed"] == 0


def decode_together(core: EngineCore, steps: Iterator[list[Output]]) -> list[Output]:
    """Step until all three requests decode; return what arrived."""
    outputs = next(steps)
    while any(sequence.is_prefilling for sequence in core.scheduler.running):
        outputs += next(steps)
    assert len(core.scheduler.running) == 3
    return outputs


def test_the_youngest_request_waits_until_another_has_ended(
    gpu: ShadowDevice, checkpoints: Any
) -> None:
    core = make_core(checkpoints, "cuda", "off")
    for request in requests(checkpoints.vocab):
        core.submit(request)
    steps = steps_of(core)
    decode_together(core, steps)
    gpu.failures.fail_allocation()
    running: list[set[str]] = []
    for arrived in steps:
        running.append({one.request.request_id for one in core.scheduler.running})
        if any(output.finish_reason for output in arrived):
            break
    assert running[0] == {"0", "1"}
    assert all("2" not in names for names in running[:-1])
    list(steps)
    assert core.scheduler.preempted_total == 3


def out_of_memory(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next launches run out of memory after everything was computed."""
    launch, left = Launcher.launch, [times]

    def failing(*args: Any) -> Any:
        launched = launch(*args)
        if launched and left[0]:
            left[0] -= 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return launched

    monkeypatch.setattr(Launcher, "launch", failing)


def test_a_step_that_runs_out_of_memory_twice_ends_its_own_requests_only(
    gpu: ShadowDevice,
    checkpoints: Any,
    wanted: dict[str, list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = make_core(checkpoints, "cuda", "off")
    for request in requests(checkpoints.vocab):
        core.submit(request)
    steps = steps_of(core)
    outputs = decode_together(core, steps)
    out_of_memory(2, monkeypatch)
    outputs += [output for arrived in steps for output in arrived]
    failed = [output for output in outputs if output.finish_reason is FinishReason.ERROR]
    assert [output.request_id for output in failed] == ["0", "1"]
    assert all("the device is out of memory" in str(output.error) for output in failed)
    tokens = tokens_by_request(outputs)
    assert tokens["2"] == wanted["2"]
    assert all(tokens[name] == wanted[name][: len(tokens[name])] for name in ("0", "1"))
    assert core.snapshot()[metrics.OUT_OF_MEMORY_STEPS, "failed"] == 1


def test_a_single_request_is_retried_once(
    gpu: ShadowDevice,
    checkpoints: Any,
    wanted: dict[str, list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = make_core(checkpoints, "cuda", "off", scheduling={"max_running_requests": 1})
    request = requests(checkpoints.vocab)[0]
    core.submit(request)
    out_of_memory(1, monkeypatch)
    outputs = [output for arrived in steps_of(core) for output in arrived]
    assert tokens_by_request(outputs)["0"] == wanted["0"]
    core.submit(request)
    out_of_memory(2, monkeypatch)
    (output,) = [output for arrived in steps_of(core) for output in arrived]
    assert output.finish_reason is FinishReason.ERROR
