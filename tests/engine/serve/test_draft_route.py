"""A running server takes another draft on its management port, under load."""

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from checks.detection.damage import write_damaged
from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import Output
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.drafts import draft_exchange
from specdecode_engine.serve import management
from specdecode_engine.serve.engine.core import LoadedEngine
from specdecode_engine.startup.build import build_core
from tests.engine.serve.conftest import EXAMPLES, RunningServer

HEAD = EXAMPLES / "eagle3"
BODY = {"prompt": "Speculative decoding is", "max_tokens": 48, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def boot() -> EngineBoot:
    return EngineBoot.model_validate(
        {
            "model": {"path": str(EXAMPLES / "target"), "dtype": "float32"},
            "speculation": {"algorithm": "EAGLE3", "draft_path": str(HEAD), "num_steps": 2},
            "server": {"host": "127.0.0.1", "port": 0, "management_port": 0},
            "device": "cpu",
            "threads": 1,
        }
    )


@pytest.fixture
def core(boot: EngineBoot) -> EngineCore:
    return build_core(boot)


@pytest.fixture
def server(boot: EngineBoot, core: EngineCore) -> Iterator[RunningServer]:
    loaded = LoadedEngine(core, EXAMPLES / "target", core.facts, core.stage_draft)
    running = RunningServer(boot, lambda _: loaded).wait_ready()
    yield running
    running.stop()


def put(server: RunningServer, path: object, **more: str) -> httpx.Response:
    body = {"path": str(path), **more}
    return httpx.put(server.url + "/speculation/draft", json=body, timeout=30)


def text_of(server: RunningServer) -> str:
    response = httpx.post(server.url + "/v1/completions", json=BODY, timeout=60)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


def streamed_text_of(server: RunningServer) -> str:
    """The text of a stream that came to its end."""
    body = BODY | {"stream": True}
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=60) as response:
        assert response.status_code == 200
        events = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert events.pop() == "[DONE]"
    return "".join(json.loads(event)["choices"][0]["text"] for event in events)


class StepsWithoutToken:
    """Counts the steps in which a decoding request gets no token."""

    def __init__(self, core: EngineCore, monkeypatch: pytest.MonkeyPatch) -> None:
        self._core, self._step = core, core.step
        self._gaps: Counter[str] = Counter()
        self.longest = self.steps = 0
        monkeypatch.setattr(core, "step", self.step)

    def step(self) -> list[Output]:
        running = self._core.scheduler.running
        decoding = {one.request.request_id for one in running if one.output_tokens}
        outputs = self._step()
        for name in decoding - {output.request_id for output in outputs}:
            self._gaps[name] += 1
            self.longest = max(self.longest, self._gaps[name])
        for output in outputs:
            del self._gaps[output.request_id]
        self.steps += 1
        return outputs


def test_drafts_are_exchanged_while_requests_run_and_every_text_stays(
    server, core, tmp_path, monkeypatch
):
    monkeypatch.setattr(draft_exchange, "PIECE_BYTES", 50_000)
    damaged = write_damaged("wrong d2t", HEAD, tmp_path / "damaged")
    expected = text_of(server)
    steps = StepsWithoutToken(core, monkeypatch)
    with ThreadPoolExecutor(8) as pool:
        texts = [
            pool.submit(streamed_text_of if number % 2 else text_of, server) for number in range(24)
        ]
        for path in (damaged, HEAD, damaged, HEAD):
            assert put(server, path).status_code == 200
        assert {each.result() for each in texts} == {expected}
    assert steps.steps > 50
    assert steps.longest <= 1, "no stream waits for an exchange, but for a step in flight"
    described = server.get("/speculation/draft").json()
    assert described["path"] == str(HEAD)
    assert described["source"] == "PUT /speculation/draft"
    assert described["latest_refusal"] is None
    assert server.get("/server_info").json()["speculation_draft"] == described
    assert 'specdecode_draft_exchanges_total{result="applied"} 4.0' in server.get("/metrics").text


def test_an_exchange_that_takes_long_is_answered_before_its_end(server, monkeypatch, tmp_path):
    monkeypatch.setattr(management, "MAX_DRAFT_SECONDS", 0.0)
    for path, source, refused in (
        (HEAD, "PUT /speculation/draft", None),
        (tmp_path, "PUT /speculation/draft", str(tmp_path)),
    ):
        response = put(server, path)
        assert response.status_code == 202
        described = response.json()
        while described["changing_to"] is not None:
            assert described["changing_to"] == str(path)
            described = server.get("/speculation/draft").json()
        assert described["path"] == str(HEAD)
        assert (described["source"], described["refused_path"]) == (source, refused)
    assert text_of(server)


def test_a_refused_draft_leaves_the_old_one_and_its_reason(server, tmp_path):
    refused = put(server, tmp_path / "nothing")
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "draft_refused"
    described = server.get("/speculation/draft").json()
    assert described["path"] == str(HEAD)
    assert "the running draft stays" in described["latest_refusal"]
    assert described["refused_needs_restart"] is False
    unreadable = tmp_path / "config"
    (unreadable / "config.json").mkdir(parents=True)
    text = tmp_path / "text"
    text.mkdir()
    (text / "config.json").write_text("a secret")
    messages = set()
    for path in ("/nothing", "/etc/passwd", "/root", unreadable, text, "/" + "x" * 300):
        response = put(server, path)
        assert response.status_code == 409
        messages.add(response.json()["error"]["message"].removeprefix(f"{path}: "))
    (message,) = messages  # no search of the pod's files by their errors
    assert message.startswith("is not a folder with a checkpoint that the engine can read")
    for path in ("relative/path", "pvc://models/draft", "/models/\0"):
        response = put(server, path)
        assert response.status_code == 400
        message = response.json()["error"]["message"]
        assert message.endswith(": give the absolute path of a folder that the engine can read")
    assert put(server, HEAD, configHash="x" * 64).status_code == 400
    twice = f'{{"path": "/models/draft", "path": "{HEAD}"}}'
    response = httpx.put(server.url + "/speculation/draft", content=twice, timeout=30)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "path is given twice; remove one"
    assert text_of(server)


def test_an_engine_reports_the_configuration_of_the_draft_in_use(server, tmp_path):
    damaged = write_damaged("wrong d2t", HEAD, tmp_path / "damaged")
    described = put(server, damaged, configHash="v1-new").json()
    assert (described["path"], described["config_hash"]) == (str(damaged), "v1-new")
    assert put(server, tmp_path, configHash="v1-refused").status_code == 409
    assert server.get("/speculation/draft").json()["config_hash"] == "v1-new"
    assert 'config_hash="v1-new"' in server.get("/metrics").text
    assert put(server, HEAD).json()["config_hash"] == "v1-new"
