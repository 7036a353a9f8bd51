"""The shadow CUDA device fails as tests request: once, for good, or by being slow."""

import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from specdecode_api.boot import EngineBoot
from specdecode_engine.startup.build import build_core
from tests.engine.whole_engine import boot_of, requests_of
from tests.shadow_cuda.active import on_this_thread, shadow_cuda
from tests.shadow_cuda.device import ShadowDevice


@pytest.fixture
def gpu() -> Iterator[ShadowDevice]:
    with shadow_cuda() as device:
        yield device


def sent(values: list[int]) -> torch.Tensor:
    pinned = torch.empty(len(values), dtype=torch.int64, pin_memory=True)
    return pinned.copy_(torch.tensor(values, device="cuda"), non_blocking=True)


# A sticky error


def test_an_error_of_a_launch_is_raised_by_everything_after_it(gpu: ShadowDevice) -> None:
    x, event = torch.zeros(4, device="cuda"), torch.cuda.Event()
    event.record()
    gpu.failures.fail_launch(2)
    x.add_(1)
    with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
        x.add_(1)
    later: list[Callable[[], object]] = [
        lambda: x.mul_(2),
        lambda: x + 1,
        lambda: torch.zeros(1, device="cuda"),
        lambda: torch.empty(1, device="cuda"),
        lambda: x.tolist(),
        lambda: event.synchronize(),
        lambda: event.query(),
        lambda: torch.cuda.synchronize(),
    ]
    for call in later:
        with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
            call()
    assert x[1:].shape == (3,), "a view needs no device"
    assert gpu.failures.error is not None


def test_an_error_may_occur_in_a_replay(gpu: ShadowDevice) -> None:
    x, graph = torch.zeros(1, device="cuda"), torch.cuda.CUDAGraph()
    graph.capture_begin()
    x.add_(1)
    graph.capture_end()
    graph.replay()
    gpu.failures.fail_launch(message="CUDA error: device-side assert triggered")
    with pytest.raises(torch.AcceleratorError, match="device-side assert"):
        graph.replay()


# Memory


def test_an_allocation_fails_once(gpu: ShadowDevice) -> None:
    gpu.failures.fail_allocation(2)
    x = torch.zeros(8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate 32 bytes"):
        x + 1
    assert (x + 1).tolist() == [1] * 8


# A slow step


def test_an_event_is_not_reached_before_the_release(gpu: ShadowDevice) -> None:
    host, event = sent([3, 4]), torch.cuda.Event()
    event.record()
    gpu.failures.stall()
    found: list[list[int]] = []

    def wait() -> None:
        with on_this_thread(gpu):
            event.synchronize()
            found.append(host.tolist())

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert not any(event.query() for _ in range(3))
    assert (host.tolist(), found) != ([3, 4], [[3, 4]])
    gpu.failures.release()
    waiting.join(timeout=30)
    assert found == [[3, 4]]


def test_a_stall_ends_when_a_wait_has_lasted_its_seconds(gpu: ShadowDevice) -> None:
    host = sent([3, 4])
    gpu.failures.stall(seconds=0.01)
    torch.cuda.synchronize()
    assert host.tolist() == [3, 4]
    assert not gpu.failures.is_stalled


# Whole engines


def test_an_engine_meets_the_error_that_was_asked_for(
    checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECDECODE_KERNELS", "torch")
    document = boot_of(checkpoints, "EAGLE3", 1, attention_backend="torch", device="cuda")
    document["model"]["context_length"] = 64
    with shadow_cuda() as gpu:
        core = build_core(EngineBoot.model_validate(document))
        for request in requests_of(checkpoints.vocab, 1, 4):
            core.submit(request)
        core.step()
        gpu.failures.fail_launch(20)
        for _ in range(2):
            with pytest.raises(torch.AcceleratorError):
                core.step()
