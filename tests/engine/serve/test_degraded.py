"""Degradations that an engine reports."""

import httpx
import pytest

from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_api.report import Degradations, Degraded
from specdecode_engine.graphs.plan import GraphReport
from specdecode_engine.serve.engine.core import LoadedEngine
from specdecode_engine.serve.health import missed_graphs
from specdecode_kernels.cpu import loading
from tests.engine.serve.conftest import EXAMPLES
from tests.engine.serve.echo_core import EchoCore


def reported(server):
    answer = server.get("/degraded")
    assert answer.status_code == 200
    found = Degradations.model_validate_json(answer.text).degraded
    return {each.reason: each.message for each in found}


def test_an_engine_without_degradations_reports_none(echo_server):
    assert reported(echo_server) == {}


def test_keys_that_are_gone_and_come_back(tmp_path, start_server, eventually):
    file = tmp_path / "keys"
    file.write_text("sk-a\n")
    server = start_server(api_key_path=file)
    assert reported(server) == {}
    file.write_text("")
    eventually(lambda: Degraded.API_KEYS_MISSING in reported(server))
    assert "every request is refused: no API key in" in reported(server)[Degraded.API_KEYS_MISSING]
    file.write_text("sk-a\n")
    eventually(lambda: reported(server) == {})


def test_a_table_that_was_refused(start_server):
    server = start_server()
    assert isinstance(server.core, EchoCore)
    answer = httpx.put(server.url + "/speculation/table", json={"table": {"1": [1]}})
    assert answer.status_code == 400
    text = reported(server)[Degraded.TABLE_REFUSED]
    assert text.startswith("the old table stays in force: PUT /speculation/table: ")


def test_a_processor_that_no_kernels_were_compiled_for(start_server, model_folder, monkeypatch):
    monkeypatch.setattr(loading, "_library", lambda _: "there is no C compiler; install gcc")
    boot = EngineBoot.model_validate(
        {"model": {"path": str(EXAMPLES / "target"), "dtype": "float32"}, "device": "cpu"}
    )
    facts = build_poisoned(boot, 64).facts
    assert facts["linears"] == "plain"
    assert facts["target_attention"] == "torch"
    server = start_server(lambda _: LoadedEngine(EchoCore(), model_folder, facts))
    text = reported(server)[Degraded.CPU_KERNELS_MISSING]
    assert text.endswith("several times slower: there is no C compiler; install gcc")


@pytest.mark.parametrize(
    ("captured", "eager", "mode", "is_reported"),
    [
        (0, {}, "cuda", False),
        (1000, {"too_large": 100}, "cuda", False),
        (1000, {"too_large": 112}, "cuda", True),
        (900, {"refused": 60, "unplanned": 60}, "cuda", True),
        (900, {"pending": 120}, "cuda", True),
        (100, {"refused": 50}, "cuda", False),  # too few steps
        (0, {"off": 9000}, "off", False),
    ],
)
def test_decode_steps_without_a_cuda_graph_are_reported(captured, eager, mode, is_reported):
    report = GraphReport(
        mode,
        refused=("num_steps 3 at batch size 64 runs eagerly",),
        graph_steps=captured,
        eager_steps=eager,
    )
    text = missed_graphs(report)
    assert bool(text) is is_reported
    if is_reported:
        assert all(why in text for why in eager)
        assert "num_steps 3 at batch size 64 runs eagerly" in text
        assert not any(str(count) in text for count in eager.values())


def test_a_failed_capture_is_degraded_from_the_first_step_on():
    failure = "capturing failed: RuntimeError: no such kernel"
    text = missed_graphs(GraphReport("cuda", failure=failure))
    assert text.endswith(f"than with CUDA graphs: {failure}")
