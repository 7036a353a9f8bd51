"""A device that torch cannot use is explained with both versions and the remedy."""

import ctypes
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

from specdecode_api.report import TerminationReason
from specdecode_engine.process import termination_message_for
from specdecode_engine.startup.build import build_core
from specdecode_engine.startup.config import AttentionUnavailable, GraphsUnavailable
from specdecode_engine.startup.device import choose_device
from specdecode_engine.startup.driver import CudaUnavailable, DriverTooOld
from tests.engine.gpu_failures import boot_on, requests, tokens_on_the_cpu
from tests.engine.whole_engine import run, tokens_of
from tests.shadow_cuda.active import shadow_cuda

TURING = (7, 5)


class FakeLibrary:
    """libcuda of a driver, which reports the version that it is given; 0 is a failure."""

    def __init__(self, number: int) -> None:
        self._number = number

    def cuDriverGetVersion(self, result: Any) -> int:
        result._obj.value = self._number
        return 0 if self._number else 3


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None, str | None], None]:
    """Install a driver, by the number of its CUDA version, and a build of torch."""

    def do(number: int | None, built: str | None) -> None:
        def load(name: str) -> FakeLibrary:
            assert name == "libcuda.so.1"
            if number is None:
                raise OSError("libcuda.so.1: cannot open shared object file")
            return FakeLibrary(number)

        monkeypatch.setattr(ctypes, "CDLL", load)
        monkeypatch.setattr(torch.version, "cuda", built)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    return do


def test_a_driver_that_is_too_old_is_named_with_both_versions_and_the_remedy(
    install: Callable[..., None],
) -> None:
    install(12040, "13.0")
    with pytest.raises(DriverTooOld) as caught:
        choose_device("cuda")
    message = termination_message_for(caught.value)
    assert message.reason == TerminationReason.DRIVER_TOO_OLD
    for words in ("CUDA 12.4", "built for CUDA 13.0", "install driver 580 or later", "CUDA 12"):
        assert words in message.message


@pytest.mark.parametrize(
    ("number", "built", "words"),
    [
        (None, "13.0", "there is no NVIDIA driver"),
        (0, "13.0", "there is no NVIDIA driver"),
        (13000, None, "is built without CUDA"),
        (13000, "13.0", "torch finds no CUDA device, although the driver supports CUDA 13.0"),
        (12010, "12.8", "although the driver supports CUDA 12.1"),  # minor versions are compatible
    ],
)
def test_every_other_cause_has_its_remedy(
    install: Callable[..., None], number: int | None, built: str | None, words: str
) -> None:
    install(number, built)
    with pytest.raises(CudaUnavailable, match=words) as caught:
        choose_device("cuda")
    assert termination_message_for(caught.value).reason == TerminationReason.CANNOT_SERVE


def test_under_auto_the_cpu_is_used_and_an_old_driver_is_logged(
    install: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        install(None, "13.0")
        assert choose_device("auto").type == choose_device("cpu").type == "cpu"
        assert not caplog.records
        install(12040, "13.0")
        assert choose_device("auto").type == "cpu"
    (record,) = caplog.records
    assert "runs on the CPU: the NVIDIA driver supports CUDA 12.4" in record.getMessage()


def test_a_device_before_ampere_is_served_by_torch_under_auto(checkpoints: Any) -> None:
    with shadow_cuda(capability=TURING) as gpu:
        core = build_core(boot_on(checkpoints, "cuda", "auto"))
        answers = tokens_of(run(core, requests(checkpoints.vocab)))
    assert answers == tokens_on_the_cpu(checkpoints)
    assert core.context.ops.name == core.context.ops.attention == core.facts["target_attention"]
    assert core.facts["target_attention"] == "torch"
    assert "need compute capability (8, 0), this device is (7, 5)" in str(
        core.facts["target_attention_reason"]
    )
    assert core.facts["graphs"] == "off"
    assert gpu.compiled == []


@pytest.mark.parametrize(
    ("mode", "attention", "error", "words"),
    [
        ("cuda", "auto", GraphsUnavailable, r"needs compute capability 8\.0, and .* has 7\.5; use"),
        ("auto", "triton", AttentionUnavailable, r"this device is \(7, 5\)"),
    ],
)
def test_a_device_before_ampere_is_refused_where_graphs_or_triton_are_required(
    checkpoints: Any, mode: str, attention: str, error: type[Exception], words: str
) -> None:
    with shadow_cuda(capability=TURING), pytest.raises(error, match=words) as caught:
        build_core(boot_on(checkpoints, "cuda", mode, attention_backend=attention))
    assert termination_message_for(caught.value).reason == TerminationReason.CANNOT_SERVE
