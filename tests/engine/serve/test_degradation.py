"""What an engine says it does worse than it was told to."""

import httpx
import pytest

from specdecode_api.boot import EngineBoot
from specdecode_api.report import Degradations, Degraded
from specdecode_engine.build import build_core
from specdecode_engine.graph_plan.report import GraphReport
from specdecode_engine.serve.core import LoadedEngine
from specdecode_engine.serve.degradation import missed
from specdecode_engine.serve.testing import EchoCore
from specdecode_kernels.native import library
from tests.engine.serve.conftest import EXAMPLES


def told(server):
    answer = server.get("/health/degraded")
    assert answer.status_code == 200
    found = Degradations.model_validate_json(answer.text).degraded
    return {each.reason: each.message for each in found}


def test_an_engine_that_does_as_told_says_nothing(echo_server):
    assert told(echo_server) == {}


def test_keys_that_are_gone_and_come_back(tmp_path, start_server, eventually):
    file = tmp_path / "keys"
    file.write_text("sk-a\n")
    server = start_server(api_key_path=file)
    assert told(server) == {}
    file.write_text("")
    eventually(lambda: Degraded.API_KEYS_MISSING in told(server))
    assert "every call is refused: no API key in" in told(server)[Degraded.API_KEYS_MISSING]
    file.write_text("sk-a\n")
    eventually(lambda: told(server) == {})


def test_a_table_that_was_refused(start_server):
    server = start_server()
    assert isinstance(server.core, EchoCore)
    answer = httpx.put(server.url + "/speculation/table", json={"1": [1]})
    assert answer.status_code == 400
    text = told(server)[Degraded.TABLE_REFUSED]
    assert text.startswith("the old table stays: PUT /speculation/table: ")


def test_a_processor_that_no_kernels_were_compiled_for(start_server, model_folder, monkeypatch):
    monkeypatch.setattr(library, "_library", lambda _: "there is no C compiler; install gcc")
    boot = EngineBoot.model_validate(
        {"model": {"path": str(EXAMPLES / "target"), "dtype": "float32"}, "device": "cpu"}
    )
    facts = build_core(boot, pool_tokens=64).facts
    assert facts["linears"] == "plain"
    assert facts["target_attention"] == "torch"
    server = start_server(lambda _: LoadedEngine(EchoCore(), model_folder, facts))
    text = told(server)[Degraded.CPU_KERNELS_MISSING]
    assert text.endswith("kernels would: there is no C compiler; install gcc")


@pytest.mark.parametrize(
    ("captured", "eager", "mode", "is_told"),
    [
        (0, {}, "cuda", False),
        (1000, {"too_large": 100}, "cuda", False),
        (1000, {"too_large": 112}, "cuda", True),
        (900, {"refused": 60, "unplanned": 60}, "cuda", True),
        (100, {"refused": 50}, "cuda", False),  # too few to tell
        (0, {"off": 9000}, "off", False),
    ],
)
def test_rounds_without_the_captured_pass_that_was_planned(captured, eager, mode, is_told):
    report = GraphReport(
        mode,
        refused=("depth 3, batch 64: over budget",),
        captured_rounds=captured,
        eager_rounds=eager,
    )
    text = missed(report)
    assert bool(text) is is_told
    if is_told:
        assert all(why in text for why in eager)
        assert "depth 3, batch 64: over budget" in text
        assert not any(str(count) in text for count in eager.values())
