"""A running server takes another draft on its management port, under load."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from detection.damage import write_damaged
from specdecode_api.boot import EngineBoot
from specdecode_engine.serve.engine.core import LoadedEngine
from specdecode_engine.startup.build import build_core
from tests.engine.serve.conftest import EXAMPLES, RunningServer

HEAD = EXAMPLES / "eagle3"
BODY = {"prompt": "Speculative decoding is", "max_tokens": 48, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def server():
    boot = EngineBoot.model_validate(
        {
            "model": {"path": str(EXAMPLES / "target"), "dtype": "float32"},
            "speculation": {"algorithm": "EAGLE3", "draft_path": str(HEAD), "num_steps": 2},
            "server": {"host": "127.0.0.1", "port": 0},
            "device": "cpu",
            "threads": 1,
        }
    )
    core = build_core(boot)
    loaded = LoadedEngine(core, EXAMPLES / "target", core.facts, core.stage_draft)
    running = RunningServer(boot, lambda _: loaded).wait_ready()
    yield running
    running.stop()


def put(server: RunningServer, path: object) -> httpx.Response:
    return httpx.put(server.url + "/speculation/draft", json={"path": str(path)}, timeout=30)


def text_of(server: RunningServer) -> str:
    response = httpx.post(server.url + "/v1/completions", json=BODY, timeout=60)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


def test_drafts_are_exchanged_while_requests_run_and_every_text_stays(server, tmp_path):
    damaged = write_damaged("wrong d2t", HEAD, tmp_path / "damaged")
    expected = text_of(server)
    with ThreadPoolExecutor(6) as pool:
        texts = [pool.submit(text_of, server) for _ in range(18)]
        for path in (damaged, HEAD, damaged, HEAD):
            assert put(server, path).status_code == 200
        assert {each.result() for each in texts} == {expected}
    described = server.get("/speculation/draft").json()
    assert described["path"] == str(HEAD)
    assert described["source"] == "PUT /speculation/draft"
    assert described["latest_refusal"] is None
    assert server.get("/server_info").json()["speculation_draft"] == described
    assert 'specdecode_draft_exchanges_total{result="applied"} 4.0' in server.get("/metrics").text


def test_a_refused_draft_leaves_the_old_one_and_its_reason(server, tmp_path):
    refused = put(server, tmp_path / "nothing")
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "draft_refused"
    described = server.get("/speculation/draft").json()
    assert described["path"] == str(HEAD)
    assert "the running draft stays" in described["latest_refusal"]
    assert put(server, "relative/path").status_code == 400
    assert text_of(server)
