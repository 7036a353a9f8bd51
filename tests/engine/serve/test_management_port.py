"""Two ports over real HTTP: what each serves, what garbage does, and how both end."""

import socket
import threading

import httpx
import pytest

from specdecode_api.report import StartProgress
from specdecode_engine.drain_socket import DRAIN, UNDRAIN, DrainClient
from specdecode_engine.serve.engine.core import LoadedEngine
from tests.engine.serve.echo_core import EchoCore

API = ("/health", "/ping", "/version", "/v1/models", "/v1/models/echo")
MANAGEMENT = (
    "/startup", "/ready", "/live", "/degraded", "/progress", "/metrics", "/server_info",
    "/speculation/table",
)  # fmt: skip
BODY = {"prompt": "the quick brown fox", "max_tokens": 40}


@pytest.fixture
def server(start_server, free_port):
    return start_server(management_port=free_port)


def statuses(url, paths):
    return {path: httpx.get(url + path, timeout=10).status_code for path in paths}


def test_each_port_serves_its_routes_and_answers_404_for_the_others(server):
    assert statuses(server.url, API) == dict.fromkeys(API, 200)
    assert statuses(server.url, MANAGEMENT) == dict.fromkeys(MANAGEMENT, 404)
    assert statuses(server.management_url, MANAGEMENT) == dict.fromkeys(MANAGEMENT, 200)
    assert statuses(server.management_url, API) == dict.fromkeys(API, 404)
    assert httpx.post(server.management_url + "/v1/completions", json=BODY).status_code == 404
    for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        assert httpx.post(server.url + path, json={}).status_code == 404
        answer = httpx.post(server.management_url + path, json={"lora_name": "a"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "adapters_are_fixed")
        assert "--lora-root FOLDER" in answer.text
    answer = httpx.put(server.url + "/speculation/table", json={})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


REPORTS = ("/metrics", "/server_info", "/get_server_info")


def test_metrics_are_on_the_api_port_by_a_flag(start_server, free_port):
    server = start_server(management_port=free_port, options={"metrics_on_api_port": True})
    for url in (server.url, server.management_url):
        assert statuses(url, REPORTS) == dict.fromkeys(REPORTS, 200)
    others = [path for path in MANAGEMENT if path not in REPORTS]
    assert statuses(server.url, others) == dict.fromkeys(others, 404)


def test_metrics_on_the_api_port_need_a_key_if_there_are_keys(start_server, free_port, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("sk-one\n")
    options = {"metrics_on_api_port": True}
    server = start_server(management_port=free_port, api_key_path=keys, options=options)
    assert statuses(server.url, REPORTS) == dict.fromkeys(REPORTS, 401)
    assert statuses(server.management_url, REPORTS) == dict.fromkeys(REPORTS, 200)
    for path in REPORTS:
        answer = httpx.get(server.url + path, headers={"authorization": "Bearer sk-one"})
        assert answer.status_code == 200


def test_server_info_has_the_accept_length_as_benchmarks_read_it(drafting_server):
    """SGLang's benchmarks divide by it."""
    drafting_server.post("/v1/completions", json=BODY | {"temperature": 0})
    found = drafting_server.get("/get_server_info").json()
    accept_length = found["internal_states"][0]["avg_spec_accept_length"]
    assert accept_length == found["snapshot"]["accept_length"] >= 1


def test_headers_do_not_choose_the_port(server):
    host = server.management_url.removeprefix("http://")
    headers = {"host": host, "x-forwarded-host": host, "x-forwarded-port": host.split(":")[1]}
    assert httpx.get(server.url + "/server_info", headers=headers).status_code == 404


@pytest.mark.parametrize("is_named", [False, True])
def test_one_port_serves_everything_when_the_ports_are_equal(start_process, free_port, is_named):
    ports = {"port": free_port, "management_port": free_port if is_named else 0}
    engine = start_process(**ports)
    both = (*API[:4], *MANAGEMENT)
    assert statuses(engine.url, both) == dict.fromkeys(both, 200)


def test_the_management_port_listens_on_its_own_host(start_process, free_port):
    engine = start_process(host="127.0.0.2", management_host="127.0.0.1", management_port=free_port)
    assert httpx.get(engine.management_url + "/ready").status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.2:{free_port}/ready")
    assert httpx.get(f"http://127.0.0.2:{engine.port}/health").status_code == 200


def test_health_is_for_load_balancers_and_hides_internal_errors(
    start_server, free_port, model_folder
):
    may_load = threading.Event()

    def load(progress):
        progress(StartProgress(stage="weights of /secret/path"))
        assert may_load.wait(20)
        return LoadedEngine(EchoCore(), model_folder)

    server = start_server(load, is_ready=False, management_port=free_port)
    for path in ("/health", "/ping"):
        answer = server.get(path)
        assert (answer.status_code, answer.json()["reason"]) == (503, "loading")
    may_load.set()
    server.wait_ready()
    with DrainClient(server.drain_socket) as client:
        client.send(DRAIN)
        assert server.get("/health").json() == {"status": "unavailable", "reason": "draining"}
    with DrainClient(server.drain_socket) as client:
        client.send(UNDRAIN)
    assert server.get("/health").json() == {"status": "ok"}
    assert set(server.get("/version").json()) == {"version"}


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),  # TLS
        b"GET /ready HTTP/9.9\r\n\r\n",
        b"PUT /speculation/table HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"PUT /speculation/table HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"A" * 70_000 + b"\r\n\r\n",
        b"\x00" * 100,
    ],
)
def test_garbage_on_the_management_port_is_refused_and_harms_nobody(server, garbage):
    host, port = server.management_url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as raw:
        raw.sendall(garbage)
        raw.shutdown(socket.SHUT_WR)
        try:
            answer = raw.recv(4096)
        except ConnectionResetError:
            answer = b""
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
    assert httpx.get(server.management_url + "/live").status_code == 200
    assert server.post("/v1/completions", json=BODY).status_code == 200


def test_a_key_is_needed_to_change_the_table_and_not_to_read_it(start_server, free_port, tmp_path):
    file = tmp_path / "keys"
    file.write_text("sk-a\n")
    server = start_server(api_key_path=file, owner="uid-1", management_port=free_port)
    assert statuses(server.management_url, MANAGEMENT) == dict.fromkeys(MANAGEMENT, 200)
    table = server.management_url + "/speculation/table"
    for change in (httpx.put(table, json={}), httpx.delete(table)):
        assert (change.status_code, change.json()["error"]["code"]) == (401, "invalid_api_key")
    for headers in ({"authorization": "Bearer sk-a"}, {"x-specdecode-owner": "uid-1"}):
        assert httpx.put(table, json={}, headers=headers).status_code == 400
    assert server.get("/v1/models").status_code == 401
    assert server.get("/health").status_code == 200
    assert httpx.put(server.url + "/speculation/table", json={}).status_code == 404


def test_changes_in_pods_need_the_token_or_for_now_the_owner(start_server, free_port, tmp_path):
    """A boot file with an owner and a path of tokens is one of an operator of this release."""
    keys, tokens = tmp_path / "keys", tmp_path / "tokens"
    keys.write_text("sk-a\n")
    tokens.mkdir()
    (tokens / "token").write_text("current\n")
    (tokens / "next").write_text("next\n")
    options = {"router_token_path": str(tokens)}
    server = start_server(
        api_key_path=keys, owner="uid-1", management_port=free_port, options=options
    )
    changes = [server.management_url + f"/speculation/{name}" for name in ("table", "draft")]
    token, owner = "x-specdecode-router-token", "x-specdecode-owner"
    for headers in ({token: "current"}, {token: "next"}, {owner: "uid-1"}):
        assert {httpx.put(url, json={}, headers=headers).status_code for url in changes} == {400}
    key = {"authorization": "Bearer sk-a"}
    for headers in ({}, key, {token: "other"}, {token: ""}, {owner: "uid-2"}, {owner: ""}):
        for url in changes:
            answers = httpx.put(url, json={}, headers=headers), httpx.delete(url, headers=headers)
            for answer in answers:
                assert answer.status_code == 403
                assert answer.json()["error"]["code"] == "invalid_router_token"
    assert statuses(server.management_url, MANAGEMENT) == dict.fromkeys(MANAGEMENT, 200)


def test_probes_answer_while_a_stopped_engine_finishes_its_requests_and_both_ports_close(
    start_server, free_port, eventually
):
    server = start_server(management_port=free_port, step_seconds=0.05, tokens_per_step=1)
    answers: list[int] = []
    request = threading.Thread(
        target=lambda: answers.append(server.post("/v1/completions", json=BODY).status_code)
    )
    request.start()
    eventually(lambda: server.service.lifecycle.running_requests == 1)
    server.stop()
    answer = httpx.get(server.management_url + "/ready")
    assert (answer.status_code, answer.json()["reason"]) == (503, "stopping")
    assert httpx.get(server.management_url + "/live").status_code == 200
    assert "specdecode_running_requests 1.0" in httpx.get(server.management_url + "/metrics").text
    request.join(20)
    assert answers == [200]
    assert server.exit_code.result(20) == 0
    for url in (server.url, server.management_url):
        with pytest.raises(httpx.ConnectError):
            httpx.get(url + "/live")
