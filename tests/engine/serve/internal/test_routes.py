"""The endpoints for routers: who may use them, what they refuse, and what the API port ignores."""

import json
import os
import signal
import threading

import httpx
import pytest

from specdecode_api.internal_api import HEADER_TOKEN, PATH_ENGINE, PATH_GENERATE
from specdecode_engine.serve.engine.core import LoadedEngine
from specdecode_engine.serve.internal.reply import InternalReply
from tests.engine.serve.conftest import wait_until
from tests.engine.serve.echo_core import EchoCore
from tests.engine.serve.internal.router_client import TOKEN, Call, engine_state, headers, post, run
from tests.engine.serve.own_process import engine_of
from tests.streamed_answers import read_answer

BODY = {"prompt": "the quick brown fox", "max_tokens": 9, "stream": True}


@pytest.fixture
def start_engine(start_server, free_port, token_file):
    def start(load=None, **options):
        given = options.pop("options", {})
        return start_server(
            load,
            management_port=free_port,
            options={"router_token_path": str(token_file), **given},
            **options,
        )

    return start


@pytest.fixture
def engine(start_engine):
    return start_engine()


def call():
    return Call("/v1/completions", dict(BODY))


def test_a_call_whose_engine_process_dies_is_left_to_the_router(
    start_process, free_port, token_file
):
    server = start_process(
        600.0, engine_process="on", management_port=free_port, router_token_path=str(token_file)
    )
    url, content = server.management_url + PATH_GENERATE, call().content()
    with httpx.stream("POST", url, content=content, headers=headers(), timeout=30) as response:
        events = (line for line in response.iter_lines() if line.startswith("data: "))
        assert "start" in json.loads(next(events).removeprefix("data: "))
        os.kill(engine_of(server.process.pid), signal.SIGKILL)
        (last,) = events
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_failed"


@pytest.mark.parametrize("is_stream", [True, False])
def test_the_last_event_is_sent_with_the_end_of_the_body(engine, monkeypatch, is_stream):
    """Otherwise routers, which read up to that event, could not keep the connection."""
    sent = []
    write = InternalReply._write

    async def recorded(self, outputs, scope, receive, send):
        async def note(message):
            sent.append(message)
            await send(message)

        await write(self, outputs, scope, receive, note)

    monkeypatch.setattr(InternalReply, "_write", recorded)
    body = BODY | {"stream": is_stream}
    assert run(engine, Call("/v1/completions", body)).is_ended
    wait_until(lambda: not sent[-1].get("more_body"))
    assert b'"end":true' in sent[-1]["body"]


@pytest.mark.parametrize("given", [{}, {HEADER_TOKEN: ""}, {HEADER_TOKEN: TOKEN[:-1]}])
def test_requests_without_a_valid_token_are_refused(engine, given):
    url = engine.management_url
    sent = {"content-type": "application/json"} | given
    generated = httpx.post(url + PATH_GENERATE, content=call().content(), headers=sent)
    state = httpx.get(url + PATH_ENGINE, headers=sent)
    for response in (generated, state):
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (403, "invalid_router_token")
        assert TOKEN not in error["message"]


def test_the_endpoints_are_on_the_management_port_alone(engine, start_server):
    for server in (engine, start_server()):
        assert server.get(PATH_ENGINE).status_code == 404
        answer = httpx.post(server.url + PATH_GENERATE, content=call().content(), headers=headers())
        assert answer.status_code == 404


def test_an_engine_without_tokens_does_not_serve_them(start_server, free_port):
    server = start_server(management_port=free_port)
    assert post(server, call()).status_code == 404


def test_tokens_are_read_again_and_two_are_valid_during_a_rotation(
    start_server, free_port, tmp_path, eventually
):
    folder = tmp_path / "tokens"
    folder.mkdir()
    options = {"router_token_path": str(folder)}
    server = start_server(management_port=free_port, options=options)

    def is_valid(token):
        url = server.management_url + PATH_ENGINE
        return httpx.get(url, headers=headers(token)).status_code == 200

    assert not is_valid("token-1")
    (folder / "token").write_text("token-1\n")
    eventually(lambda: is_valid("token-1"))
    (folder / "next").write_text("token-2\n")
    eventually(lambda: is_valid("token-2"))
    assert is_valid("token-1")
    (folder / "token").unlink()
    eventually(lambda: not is_valid("token-1"))
    assert is_valid("token-2")


def test_the_api_port_ignores_internal_headers_and_fields(engine):
    resume = [{"ids": [5, 6], "sent_characters": 1, "finished": None}]
    internal = call().envelope() | {"resume": resume, "id": "mine", "created": 1}
    plain = engine.post("/v1/completions", json=BODY)
    marked = engine.post("/v1/completions", json=internal | BODY, headers=headers())
    first, second = read_answer(plain.text), read_answer(marked.text)
    assert first.choices == second.choices
    assert not any("mine" in each or " 1 " in each for each in second.ids)


def test_the_router_determines_id_time_and_seed(engine):
    begun = run(engine, call())
    chunk = json.loads(begun.public.split("\n\n")[0].removeprefix("data: "))
    assert (chunk["id"], chunk["created"]) == ("cmpl-call1", 1700000000)


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"path": "/v1/models"}, "path"),
        ({"id": "a b"}, "id"),
        ({"seed": -1}, "seed"),
        ({"resume": [{"ids": [1]}]}, "resume[0].sent_characters"),
        ({"more": 1}, "more"),
    ],
)
def test_a_wrong_envelope_is_refused_by_its_field(engine, changes, place):
    response = post(engine, call(), **changes)
    assert (response.status_code, response.json()["error"]["param"]) == (400, place)


def test_refusals_of_the_client_are_those_of_the_api_port(engine):
    bodies: list[dict[str, object]] = [
        {"prompt": "x", "max_tokens": 0},
        {"prompt": []},
        {"prompt": "x", "model": "y"},
    ]
    for body in bodies:
        through = post(engine, Call("/v1/completions", body))
        direct = engine.post("/v1/completions", json=body)
        assert through.status_code == direct.status_code
        assert through.json() == direct.json()
    url = engine.management_url + PATH_GENERATE
    text = httpx.post(url, content=call().content(), headers={HEADER_TOKEN: TOKEN})
    assert text.status_code == 415
    limit = engine_state(engine)["max_body_bytes"]
    large = Call("/v1/completions", {"prompt": "x" * limit})
    assert post(engine, large).json()["error"]["code"] == "body_too_large"
    direct = engine.post("/v1/completions", json=large.body)
    assert (direct.status_code, post(engine, large).status_code) == (413, 413)


def test_a_client_needs_its_api_key_also_through_a_router(start_engine, tmp_path):
    file = tmp_path / "keys"
    file.write_text("sk-a\n")
    engine = start_engine(api_key_path=file)
    url = engine.management_url + PATH_GENERATE
    without = httpx.post(url, content=call().content(), headers=headers())
    assert (without.status_code, without.json()["error"]["code"]) == (401, "invalid_api_key")
    known = headers(authorization="Bearer sk-a")
    assert httpx.post(url, content=call().content(), headers=known).status_code == 200
    assert engine_state(engine)["reason"] is None


def test_the_state_of_an_engine_has_what_a_router_chooses_by(engine):
    state = engine_state(engine)
    assert state["api_port"] == engine.address[1]
    assert (state["model"], state["requests"], state["capacity"]) == ("echo", 0, 16)
    assert state["reason"] is None


def test_a_call_that_waits_gets_heartbeats_and_none_while_a_step_is_late(
    start_engine, model_folder
):
    may_step = threading.Event()

    class Blocked(EchoCore):
        def step(self):
            assert may_step.wait(30)
            return super().step()

    engine = start_engine(
        lambda progress: LoadedEngine(Blocked(), model_folder),
        options={"step_timeout_seconds": 2.5},
    )
    url = engine.management_url + PATH_GENERATE
    waiting = call()
    with httpx.stream(
        "POST", url, content=waiting.content(), headers=headers(), timeout=httpx.Timeout(10, read=3)
    ) as response:
        beats = 0
        try:
            for data in response.iter_bytes():
                beats += data.startswith(b":")
        except httpx.ReadTimeout:
            pass
    assert beats == 2
    may_step.set()


def test_an_engine_that_fails_ends_the_stream_with_the_reason(start_engine):
    engine = start_engine(failing_step=2)
    broken = run(engine, call())
    assert broken.error is not None
    assert broken.error["code"] == "engine_failed"
    assert broken.choices[0]["ids"]
    assert not broken.is_ended
