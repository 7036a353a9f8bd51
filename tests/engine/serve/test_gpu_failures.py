"""What clients, probes and the operator get when the GPU fails, over HTTP, on the shadow device."""

import logging
import re
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import torch

from specdecode_api.boot import EngineBoot
from specdecode_api.report import Degradations, Degraded, TerminationReason
from specdecode_engine.batch.request import Output
from specdecode_engine.process import termination_message_for
from specdecode_engine.process.start_progress import ShowProgress
from specdecode_engine.serve.app import build_app
from specdecode_engine.serve.engine.core import LoadedEngine
from specdecode_engine.serve.engine.engine_thread import EngineThread
from specdecode_engine.serve.openai.service import Service
from specdecode_engine.startup.build import build_core
from tests.engine.gpu_failures import break_capture
from tests.engine.serve.conftest import EXAMPLES, RunningServer
from tests.engine.serve.echo_core import EchoCore
from tests.shadow_cuda.active import on_this_thread, shadow_cuda
from tests.shadow_cuda.device import ShadowDevice

BODY = {"prompt": "the quick brown fox", "max_tokens": 24, "temperature": 0, "ignore_eos": True}
Start = Callable[..., RunningServer]


@pytest.fixture
def gpu() -> Iterator[ShadowDevice]:
    with shadow_cuda() as device:
        yield device


@pytest.fixture
def start(gpu: ShadowDevice, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start servers on the example models, by default with CUDA graphs; ended with the test."""
    running: list[RunningServer] = []
    run_thread = EngineThread._run

    def run_on_device(self: EngineThread) -> None:
        with on_this_thread(gpu):
            run_thread(self)

    monkeypatch.setattr(EngineThread, "_run", run_on_device)

    def run(graphs: str = "auto", **server: object) -> RunningServer:
        document = {
            "model": {"path": str(EXAMPLES / "target"), "context_length": 128, "dtype": "float32"},
            "speculation": {
                "algorithm": "STANDALONE",
                "draft_path": str(EXAMPLES / "draft"),
                "num_steps": 3,
            },
            "scheduling": {"max_running_requests": 2},
            "graphs": {"mode": graphs, "batch_sizes": (2,)},
            "server": {"management_port": 0, **server},
            "device": "cuda",
        }
        boot = EngineBoot.model_validate(document)

        def load(progress: ShowProgress) -> LoadedEngine:
            core = build_core(boot)
            return LoadedEngine(core, EXAMPLES / "target", core.facts)

        running.append(RunningServer(boot, load))
        return running[-1].wait_ready(60)

    yield run
    gpu.failures.release()
    for server in running:
        server.close()


@pytest.fixture(scope="module")
def text() -> str:
    """What every server has to answer."""
    boot = EngineBoot.model_validate(
        {
            "model": {"path": str(EXAMPLES / "target"), "context_length": 128, "dtype": "float32"},
            "memory": {"kv_cache_bytes": 64 * 2**20},
            "device": "cpu",
        }
    )
    folder = EXAMPLES / "target"
    server = RunningServer(boot, lambda _: LoadedEngine(build_core(boot), folder)).wait_ready()
    try:
        return answer(server)
    finally:
        server.close()


def answer(server: RunningServer) -> str:
    response = server.post("/v1/completions", json=BODY)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


def metric(server: RunningServer, sample: str) -> float:
    lines = server.get("/metrics").text.splitlines()
    return float(next((line.split()[-1] for line in lines if line.startswith(sample)), "0"))


def test_a_capture_failure_is_reported_and_the_engine_serves_eagerly(
    start: Start, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_capture(monkeypatch, lambda: torch.AcceleratorError("CUDA error: invalid argument"))
    server = start()
    assert answer(server) == text
    reason = "capturing failed: AcceleratorError: CUDA error: invalid argument"
    facts = server.get("/server_info").json()["facts"]
    assert (facts["graphs"], facts["graphs_reason"]) == ("off", reason)
    report = Degradations.model_validate_json(server.get("/degraded").text)
    (found,) = report.degraded
    assert found.reason == Degraded.CUDA_GRAPHS_MISSED
    assert reason in found.message
    assert metric(server, "specdecode_graph_capture_failed") == 1
    assert server.get("/live").status_code == 200


def test_out_of_memory_in_a_step_costs_no_client_its_answer(
    start: Start, text: str, gpu: ShadowDevice
) -> None:
    server = start(graphs="off")
    assert answer(server) == text
    gpu.failures.fail_allocation(40)
    assert answer(server) == text
    assert metric(server, 'specdecode_out_of_memory_steps_total{outcome="retried"}') == 1
    assert server.get("/live").status_code == 200


def test_a_sticky_error_ends_requests_with_500_and_the_process_with_the_last_graph(
    start: Start, text: str, gpu: ShadowDevice, eventually: Any
) -> None:
    server = start()
    assert answer(server) == text
    url, body = f"{server.url}/v1/completions", BODY | {"max_tokens": 100}
    with (
        ThreadPoolExecutor() as pool,
        httpx.stream("POST", url, json=body | {"stream": True}, timeout=30) as streamed,
    ):
        lines = streamed.iter_lines()
        next(lines)
        gpu.failures.stall()
        waiting: Any = pool.submit(server.post, "/v1/completions", json=body)
        eventually(lambda: server.service.lifecycle.running_requests == 2)
        gpu.failures.fail_launch()
        gpu.failures.release()
        streamed_text = "\n".join(lines)
        response: httpx.Response = waiting.result(10)
    assert server.exit_code.result(10) == 1
    for sent in (streamed_text, response.text):
        assert "CUDA error: an illegal memory access was encountered" in sent
        assert '"code":"engine_failed"' in sent
    assert response.status_code == 500
    assert "[DONE]" not in streamed_text
    message = termination_message_for(server.failures[0])
    assert message.reason == TerminationReason.DEVICE_FAILED
    assert message.message.startswith("CUDA error: an illegal memory access was encountered; ")
    assert re.search(r"num_steps 3, batch size [12], on the CUDA graph of size 2", message.message)


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    """A service without a server around it: it lives on when its engine has died."""
    boot = EngineBoot.model_validate({"model": {"path": str(EXAMPLES / "target")}})
    service = Service(boot, lambda _: LoadedEngine(FailingCore(), EXAMPLES / "target"))
    service.engine.start()
    while not service.lifecycle.is_loaded:
        await service.lifecycle.wait_for_change()
    yield service
    await service.engine.close(5)


class FailingCore(EchoCore):
    """Fails as torch does on a GPU, in every step."""

    def step(self) -> list[Output]:
        self.steps += 1
        raise torch.AcceleratorError("CUDA error: unspecified launch failure\nadvice")


async def test_after_a_sticky_error_no_step_runs_and_liveness_fails(service: Service) -> None:
    transport = httpx.ASGITransport(build_app(service))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        assert (await client.get("/live")).status_code == 200
        response = await client.post("/v1/completions", json=BODY)
        assert response.status_code == 500
        live = await client.get("/live")
        assert live.status_code == 503
        failure = "CUDA error: unspecified launch failure; the newest step is number 1"
        assert live.json()["reason"] == failure
        assert (await client.post("/v1/completions", json=BODY)).status_code == 503
        metrics = (await client.get("/metrics")).text
    assert 'specdecode_engine_failures_total{reason="DeviceFailed"} 1.0' in metrics
    assert not service.engine.is_alive()
    assert service.engine.latest_step() == "the newest step is number 1"
    assert failure in response.json()["error"]["message"]


def test_a_slow_step_fails_liveness_until_it_ends_and_the_answer_is_equal(
    start: Start, text: str, gpu: ShadowDevice, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = start(step_timeout_seconds=1.5)
    gpu.failures.stall()
    with ThreadPoolExecutor() as pool, caplog.at_level(logging.ERROR):
        waiting = pool.submit(answer, server)
        eventually(lambda: server.get("/live").status_code == 503)
        reason = server.get("/live").json()["reason"]
        assert "the limit is 1.5 s (lifecycle.stepTimeout" in reason
        gpu.failures.release()
        assert waiting.result(30) == text
    assert server.get("/live").status_code == 200
    logged = [one for one in caplog.records if "the liveness probe fails" in one.getMessage()]
    assert len(logged) == 1
    assert metric(server, 'specdecode_engine_failures_total{reason="StepTimedOut"}') == 1


def test_a_pod_that_is_stopped_in_a_slow_step_ends_at_once_with_the_reason(
    start: Start, gpu: ShadowDevice, eventually: Any
) -> None:
    server = start(step_timeout_seconds=0.3, drain_seconds=600)
    gpu.failures.stall()
    with ThreadPoolExecutor() as pool:
        waiting: Any = pool.submit(server.post, "/v1/completions", json=BODY)
        eventually(lambda: server.get("/live").status_code == 503)
        server.stop()
        response: httpx.Response = waiting.result(10)
        gpu.failures.release()
        assert server.exit_code.result(10) == 1
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "engine_failed"
    assert termination_message_for(server.failures[0]).reason == TerminationReason.STEP_TIMED_OUT
