"""The order of sums of linear maps: who refuses it, where it is shown, and texts in blocks32."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from specdecode_api.boot import EngineBoot
from specdecode_engine.cli.flags import parse_flags
from specdecode_engine.engine import EngineCore
from specdecode_engine.serve.control.resume_id import FACTS, resume_id
from specdecode_engine.startup.build import build_core
from specdecode_engine.startup.device import SumOrderUnavailable
from specdecode_kernels.choice import blocks32_unsupported_reason
from specdecode_kernels.cpu import amx, loading
from specdecode_kernels.cpu.loading import load_library
from tests.engine.whole_engine import boot_of, requests_of, run

CPU = torch.device("cpu")
EXAMPLES = Path(__file__).parents[2] / "examples" / "models"
QUANTIZATIONS = ("auto", "int8", "int4")


def document_of(checkpoints, order: str, algorithm: str, model: dict[str, str]) -> dict[str, Any]:
    document = boot_of(checkpoints, algorithm, 2 if algorithm == "EAGLE3" else 1)
    document["model"] |= {"dtype": "bfloat16", "sum_order": order, **model}
    return document


def build(checkpoints, order: str, algorithm: str = "NONE", **model: str) -> EngineCore:
    document = document_of(checkpoints, order, algorithm, model)
    return build_core(EngineBoot.model_validate(document))


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
@pytest.mark.parametrize("algorithm", ["STANDALONE", "EAGLE3"])
def test_texts_in_blocks32_are_those_of_plain_decoding(
    algorithm: str, quantization: str, checkpoints
) -> None:
    requests = requests_of(checkpoints.vocab, 4, 12)
    plain = build(checkpoints, "blocks32", quantization=quantization)
    alone = {one.request_id: run(plain, [one])[one.request_id] for one in requests}
    core = build(checkpoints, "blocks32", algorithm, quantization=quantization)
    assert run(core, requests, preempted_at_step=3) == alone
    assert core.counters.decode.drafted_tokens > 0


def test_the_order_reaches_the_maps_of_the_example_target(checkpoints) -> None:
    """Log-probabilities change: rounding hides the order in the tiny checkpoints."""
    requests, path = requests_of(200, 2, 24), str(EXAMPLES / "target")
    answers = [
        run(build(checkpoints, order, path=path), requests) for order in ("inputs", "blocks32")
    ]
    assert answers[0] != answers[1]


def test_auto_is_the_order_of_the_inputs(checkpoints) -> None:
    requests = requests_of(checkpoints.vocab, 2, 12)
    answers = [run(build(checkpoints, order), requests) for order in ("auto", "inputs")]
    assert answers[0] == answers[1]


def test_facts_and_the_log_name_the_order(
    checkpoints, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(amx.TILES_VARIABLE, raising=False)
    loading._products.cache_clear()
    caplog.set_level("INFO")
    facts = build(checkpoints, "blocks32").facts
    assert facts["sum_order"] == "blocks32"
    assert facts["sum_products"] == "multiply-adds"
    assert facts["sum_products_reason"] == "SPECDECODE_TILES is not set"
    assert "order of sums: blocks32" in caplog.messages
    assert build(checkpoints, "auto").facts["sum_order"] == "inputs"


def test_engines_of_another_order_have_another_resume_id(checkpoints) -> None:
    assert "sum_order" in FACTS
    ids = {resume_id(checkpoints.target, {"sum_order": order}) for order in ("inputs", "blocks32")}
    assert len(ids) == 2


def test_the_flag_reaches_the_boot_file() -> None:
    boot = parse_flags(["--model-path", "m", "--dtype", "bfloat16", "--sum-order", "blocks32"])
    assert boot.model.sum_order == "blocks32"


@pytest.mark.parametrize(
    ("device", "dtype", "error"),
    [
        ("cuda", "bfloat16", "blocks32 is for a CPU, and device is cuda: set device to cpu"),
        ("cpu", "float32", "and model.dtype is float32: set it to bfloat16"),
    ],
)
def test_a_boot_file_with_the_wrong_device_or_type_is_refused(
    device: str, dtype: str, error: str
) -> None:
    model = {"path": "/m", "dtype": dtype, "sum_order": "blocks32"}
    with pytest.raises(ValidationError, match=re.escape(error)):
        EngineBoot.model_validate({"model": model, "device": device})


def test_the_default_type_of_a_cpu_is_refused_at_start(checkpoints) -> None:
    error = "these are float32: set model.dtype to bfloat16, or set model.sum_order to auto"
    with pytest.raises(SumOrderUnavailable, match=re.escape(error)):
        build(checkpoints, "blocks32", dtype="auto")


def test_a_gpu_arm_and_x86_without_fma_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu = blocks32_unsupported_reason(torch.device("cuda"), torch.bfloat16)
    assert on_gpu == "it is for a CPU, and the engine runs on cuda: set device to cpu"
    assert blocks32_unsupported_reason(CPU, torch.bfloat16) is None
    monkeypatch.setattr("specdecode_kernels.choice.processor_flags", lambda: {"avx", "sse4_2"})
    without_fma = blocks32_unsupported_reason(CPU, torch.bfloat16)
    assert without_fma is not None
    assert without_fma.endswith("the flags in /proc/cpuinfo have no fma: use another node")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    on_arm = blocks32_unsupported_reason(CPU, torch.bfloat16)
    assert on_arm is not None
    assert on_arm.startswith("it is for x86-64, and this processor is aarch64")


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("SPECDECODE_KERNELS", "torch", "SPECDECODE_KERNELS is torch"),
        ("SPECDECODE_LINEARS", "plain", "SPECDECODE_LINEARS is plain"),
    ],
)
def test_weights_that_stay_plain_are_refused(
    variable: str, value: str, reason: str, checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SumOrderUnavailable, match=re.escape(f"{reason}; change that, or set")):
        build(checkpoints, "blocks32")


def test_an_unknown_value_of_the_switch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(amx.TILES_VARIABLE, "yes")
    with pytest.raises(ValueError, match=r"SPECDECODE_TILES='yes' is unknown: set on, or"):
        amx.choose_products(load_library(torch.bfloat16))
