"""What a router does with its requests: whom it sends them, what it holds, refuses and forwards."""

import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.router.programs import TARGET, TOKEN, RouterProgram, unused_ports, wait_until
from specdecode_api.internal_api import HEADER_TOKEN
from tests.engine.serve.echo_process import EchoProcess
from tests.streamed_answers import read_answer

COMPLETIONS = "/v1/completions"
HI = {"role": "user", "content": "hi"}
BODY = {"prompt": "the quick brown fox jumps over the lazy dog", "max_tokens": 12}


class EchoEngine(EchoProcess):
    """An engine that repeats the prompt, with the endpoints for routers."""

    def __init__(
        self, token_file: Path, folder: Path, step_seconds: float = 0.01, **server: Any
    ) -> None:
        (port,) = unused_ports(1)
        given = {"router_token_path": str(token_file), "management_port": port, **server}
        runtime = {"XDG_RUNTIME_DIR": str(token_file.parent)}
        super().__init__(folder, runtime, step_seconds, **given)
        self.address = f"127.0.0.1:{port}"

    def wait_ready(self) -> "EchoEngine":
        self.read_port()
        wait_until(self._has_id, 60, "the engine's start")
        return self

    def computes(self) -> bool:
        """Whether a request runs."""
        metrics = httpx.get(f"{self.management_url}/metrics", timeout=10).text
        return "\nspecdecode_running_requests 1.0\n" in metrics

    def _has_id(self) -> bool:
        url = f"{self.management_url}/internal/engine"
        response = httpx.get(url, headers={HEADER_TOKEN: TOKEN}, timeout=10)
        return response.json().get("resume_id") is not None


@pytest.fixture
def start_engine(token_file: Path) -> Iterator[Callable[..., EchoEngine]]:
    running: list[EchoEngine] = []

    def start(folder: Path = TARGET, **options: Any) -> EchoEngine:
        engine = EchoEngine(token_file, folder, **options)
        running.append(engine)
        return engine.wait_ready()

    yield start
    for engine in running:
        engine.process.send_signal(signal.SIGCONT)
        engine.close()


@pytest.fixture(scope="module")
def shared(token_file: Path) -> Iterator[tuple[EchoEngine, RouterProgram]]:
    """One engine and one router for tests that leave them as they are."""
    engine = EchoEngine(token_file, TARGET).wait_ready()
    router = RouterProgram(token_file, [engine.address], "--cors-origins", "https://a.example")
    yield engine, router.wait_ready(1)
    router.close()
    engine.close()


@pytest.fixture
def router(shared: tuple[EchoEngine, RouterProgram]) -> RouterProgram:
    return shared[1]


def post(router: RouterProgram, body: dict[str, Any], **options: Any) -> httpx.Response:
    return httpx.post(router.url + COMPLETIONS, json=body, timeout=60, **options)


def test_responses_are_those_of_the_engine(shared):
    engine, router = shared
    for path, body in (
        (COMPLETIONS, BODY),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "n": 2}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "hi"}]}),
    ):
        fixed = body | {"max_tokens": 9} if path != "/v1/responses" else body
        through, direct = (httpx.post(url + path, json=fixed) for url in (router.url, engine.url))
        assert through.status_code == 200
        assert through.headers["content-type"] == direct.headers["content-type"]
        assert keys_of(through.json()) == keys_of(direct.json())
    bad = httpx.post(router.url + COMPLETIONS, json={"prompt": "x", "max_tokens": -1})
    assert bad.status_code == 400
    assert bad.json() == httpx.post(
        engine.url + COMPLETIONS, json={"prompt": "x", "max_tokens": -1}
    ).json()  # fmt: skip


def test_errors_of_messages_have_the_form_of_their_api(shared):
    engine, router = shared
    for path, body in (
        ("/v1/messages?beta=true", {"messages": []}),
        ("/v1/messages", {"thread": {"type": "create"}, "max_tokens": 1, "messages": [HI]}),
        ("/v1/messages", {"model": "other", "max_tokens": 1, "messages": [HI]}),
        ("/v1/messages/count_tokens", {"messages": []}),
        ("/v1/messages/batches", {}),
    ):
        through, direct = (httpx.post(url + path, json=body) for url in (router.url, engine.url))
        assert through.status_code == direct.status_code >= 400
        found, expected = through.json(), direct.json()
        assert (found["type"], found["error"]["type"]) == ("error", expected["error"]["type"])
        assert found == expected or "batches" in path
    impatient = {"x-specdecode-timeout": "soon"}
    refused = httpx.post(f"{router.url}/v1/messages", json={}, headers=impatient)
    assert (refused.status_code, refused.json()["type"]) == (400, "error")


def test_connections_to_engines_are_kept(shared):
    """Also of streams, which the router reads only up to their last event."""
    engine, router = shared
    used: set[int] = set()
    for number in range(12):
        post(router, BODY | {"stream": bool(number % 2)})
        used |= connections_to(engine.address)
    assert 0 < len(used) <= 2  # one more for a poll at the same time


def connections_to(address: str) -> set[int]:
    """Return the local ports of established connections to an address of this machine."""
    port = int(address.rpartition(":")[2])
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    found = {int(row[1][9:], 16): int(row[2][9:], 16) for row in rows if row[3] == "01"}
    return {local for local, remote in found.items() if remote == port}


def keys_of(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: keys_of(item) for key, item in value.items()}
    return [keys_of(item) for item in value] if isinstance(value, list) else None


def test_other_paths_of_the_api_are_forwarded_and_no_management_path_is(shared):
    engine, router = shared
    for path in (
        "/v1/models",
        "/v1/models/target",
        "/openapi.json",
        "/tokenizer_info",
        "/model_info",
        "/get_model_info",
    ):
        through, direct = httpx.get(router.url + path), httpx.get(engine.url + path)
        assert (through.status_code, through.text) == (direct.status_code, direct.text)
    ids = httpx.post(router.url + "/tokenize", json={"prompt": "a fox"})
    assert ids.json() == httpx.post(engine.url + "/tokenize", json={"prompt": "a fox"}).json()
    assert httpx.get(router.url + "/health").json() == {"status": "ok"}
    assert set(httpx.get(router.url + "/version").json()) == {"version"}
    assert httpx.head(router.url + "/v1/models").status_code == 200
    report = httpx.get(router.url + "/v1/speculation").json()
    assert keys_of(report) == keys_of(httpx.get(engine.url + "/v1/speculation").json())
    for path in (
        "/metrics", "/server_info", "/ready", "/live", "/degraded", "/speculation/table",
        "/internal/generate", "/internal/engine", "/v1/models/../../metrics",
        "/v1/models/..%2f..%2fmetrics", "/v1", "//metrics", "/v1/models\\..\\metrics",
    ):  # fmt: skip
        for method in ("GET", "PUT", "POST", "DELETE"):
            response = httpx.request(method, router.url + path, headers={HEADER_TOKEN: TOKEN})
            assert response.status_code in (404, 405), (method, path, response.status_code)


def test_the_page_of_an_engine_keeps_its_security_headers(start_engine, start_router):
    """The page is the engine's, byte for byte, and may do no more at the router's address."""
    engine = start_engine(page=True)
    url = start_router([engine]).url
    through, direct = httpx.get(url), httpx.get(engine.url)
    assert (through.status_code, through.content) == (200, direct.content)
    assert headers_of_content(through) == headers_of_content(direct)
    assert "frame-ancestors 'none'" in through.headers["content-security-policy"]
    head = httpx.head(url)
    assert (head.status_code, head.content) == (200, b"")
    assert headers_of_content(head) == headers_of_content(direct)
    refused = httpx.post(url)
    assert refused.status_code == 404


def headers_of_content(response: httpx.Response) -> dict[str, str]:
    """The headers without those of one answer: when it was, by whom, and its id."""
    own = {"date", "server", "x-request-id", "connection"}
    return {name: value for name, value in response.headers.items() if name not in own}


def test_a_page_that_is_off_is_not_found_at_the_router(start_engine, start_router):
    engine = start_engine(page=False)
    through, direct = (httpx.get(each) for each in (start_router([engine]).url, engine.url))
    assert through.status_code == direct.status_code == 404
    assert through.json() == direct.json()


def test_internal_headers_of_clients_reach_no_engine(router):
    marked = {
        HEADER_TOKEN: "wrong", "X-Specdecode-Router-Seed": "5", "X-Specdecode-Owner": "uid",
        "Connection": "x-custom, keep-alive", "X-Custom": "dropped", "X-Request-Id": "mine-1",
    }  # fmt: skip
    response = post(router, BODY | {"resume": [], "id": "mine", "seed": 3}, headers=marked)
    assert response.status_code == 200
    assert response.headers["x-request-id"] == "mine-1"
    assert response.json()["id"].startswith("cmpl-")
    assert "mine" not in response.json()["id"]


def test_methods_hosts_and_origins_are_answered_as_by_an_engine(router):
    wrong = httpx.get(router.url + COMPLETIONS)
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    preflight = httpx.options(
        router.url + COMPLETIONS,
        headers={"Origin": "https://a.example", "Access-Control-Request-Method": "POST"},
    )
    assert preflight.headers["access-control-allow-origin"] == "https://a.example"
    other = post(router, BODY, headers={"Origin": "https://b.example"})
    assert "access-control-allow-origin" not in other.headers
    assert post(router, BODY, headers={"X-Request-Id": "a b"}).status_code == 400
    assert post(router, BODY, headers={"X-Specdecode-Timeout": "soon"}).status_code == 400


def test_bodies_have_the_limit_of_the_engine(router):
    huge = httpx.post(
        router.url + COMPLETIONS,
        content=b"x" * (6 * 2**20),
        headers={"content-type": "application/json"},
    )
    assert (huge.status_code, huge.json()["error"]["code"]) == (413, "body_too_large")


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00", b"GET / HTTP/9.9\r\n\r\n", b"A" * 70_000 + b"\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)  # fmt: skip
def test_garbage_is_refused_and_harms_nobody(router, garbage):
    for port in (router.port, router.management_port):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as raw:
            raw.sendall(garbage)
            raw.shutdown(socket.SHUT_WR)
            try:
                answer = raw.recv(4096)
            except ConnectionResetError:
                answer = b""
        assert answer == b"" or b" 400 " in answer or b" 431 " in answer
    assert post(router, BODY).status_code == 200


def test_without_a_ready_engine_requests_are_held_and_then_answered_or_refused(
    start_engine, start_router, token_file
):
    engine = start_engine()
    router = start_router([engine])
    engine.process.kill()
    engine.process.wait(20)
    wait_until(lambda: router.count_ready() == 0)
    started_s = time.monotonic()
    refused = post(router, BODY, headers={"X-Specdecode-Timeout": "1"})
    assert 0.9 < time.monotonic() - started_s < 10
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_engine")
    assert refused.headers["retry-after"] == "1"
    assert httpx.get(router.url + "/health").status_code == 200
    found: list[httpx.Response] = []
    holding = threading.Thread(target=lambda: found.append(post(router, BODY)))
    holding.start()
    wait_until(lambda: router.metric("specdecode_router_held_requests") == 1)
    again = EchoEngine(token_file, TARGET, management_port=engine.management_port)
    try:
        again.wait_ready()
        holding.join(60)
        assert found[0].status_code == 200
        assert router.metric("specdecode_router_held_total") == 2
    finally:
        again.close()


def test_a_busy_engine_is_passed_over_until_the_deadline(start_engine, start_router):
    engines = [start_engine(step_seconds=0.1, core={"max_requests": 1}) for _ in range(2)]
    router = start_router(engines)
    long = BODY | {"max_tokens": 60, "ignore_eos": True}
    running = [threading.Thread(target=post, args=(router, long)) for _ in range(2)]
    for thread in running:
        thread.start()
    wait_until(lambda: all(engine.computes() for engine in engines))
    refused = post(router, BODY, headers={"X-Specdecode-Timeout": "1"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
    assert refused.headers["retry-after"]
    assert post(router, BODY).status_code == 200  # as soon as one of them has ended
    assert router.metric("specdecode_router_attempts_total", result="busy") >= 2
    for thread in running:
        thread.join(60)


def stream_and(router: RouterProgram, act: Callable[[], None], timeout: str = "60") -> str:
    """Stream an answer, and act once after its first events."""
    body = BODY | {"max_tokens": 60, "stream": True, "ignore_eos": True}
    text, has_acted = "", False
    url, headers = router.url + COMPLETIONS, {"X-Specdecode-Timeout": timeout}
    with httpx.stream("POST", url, json=body, headers=headers, timeout=60) as response:
        for piece in response.iter_text():
            text += piece
            if not has_acted and text.count("\n\n") >= 5:
                has_acted = True
                act()
    assert has_acted
    return text


@pytest.fixture
def other_target(tmp_path: Path) -> Path:
    """The target with another default of sampling, whose engines have another `resume_id`."""
    folder = tmp_path / "target"
    folder.mkdir()
    for file in TARGET.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "generation_config.json").write_text('{"top_k": 7}')
    return folder


def test_a_stream_ends_with_the_reason_where_every_engine_would_write_other_text(
    start_engine, start_router, other_target
):
    first, second = start_engine(step_seconds=0.05), start_engine(other_target, step_seconds=0.05)
    router = start_router([first, second])

    def kill_the_other() -> None:
        busy = [e for e in (first, second) if running_on(router, e)]
        assert len(busy) == 1
        busy[0].process.kill()

    answer = read_answer(stream_and(router, kill_the_other, timeout="2"))
    assert [each["code"] for each in answer.errors] == ["unresumable_resume_id"]
    assert not answer.is_complete
    assert router.metric("specdecode_router_unresumable_total", reason="resume_id") == 1
    assert router.metric("specdecode_router_resumed_total") == 0


def running_on(router: RouterProgram, engine: EchoEngine) -> float:
    return router.metric("specdecode_router_running_requests", engine=engine.address)


def test_a_response_in_one_piece_is_generated_again_on_an_engine_with_other_text(
    start_engine, start_router, other_target
):
    engines = [start_engine(step_seconds=0.05), start_engine(other_target, step_seconds=0.05)]
    router = start_router(engines)
    found: list[httpx.Response] = []
    body = BODY | {"max_tokens": 60, "ignore_eos": True}
    sending = threading.Thread(target=lambda: found.append(post(router, body)))
    sending.start()
    wait_until(lambda: router.metric("specdecode_router_running_requests") == 1)
    next(e for e in engines if running_on(router, e)).process.kill()
    sending.join(60)
    assert found[0].status_code == 200
    assert found[0].json()["usage"]["completion_tokens"] == 60
    assert router.metric("specdecode_router_restarted_total", reason="lost") == 1


def test_a_draining_engine_gets_nothing_new_and_hands_over_what_it_cannot_end(
    start_engine, start_router
):
    engines = [start_engine(step_seconds=0.05, drain_seconds=0.5) for _ in range(2)]
    router = start_router(engines)
    expected = read_answer(stream_and(router, lambda: None))

    def stop() -> None:
        engine = next(e for e in engines if running_on(router, e))
        engine.process.send_signal(signal.SIGTERM)

    answer = read_answer(stream_and(router, stop))
    assert answer.choices == expected.choices
    assert answer.is_complete
    resumed = {
        reason: router.metric("specdecode_router_resumed_total", reason=reason)
        for reason in ("draining", "lost")
    }
    assert sum(resumed.values()) == 1, resumed


def test_a_router_that_is_stopped_ends_its_streams_first(start_engine, start_router):
    router = start_router([start_engine(step_seconds=0.05)])

    def stop() -> None:
        router.signal(signal.SIGTERM)
        wait_until(lambda: "stopping" in router.text)
        refused = post(router, BODY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert refused.headers["connection"] == "close"

    assert read_answer(stream_and(router, stop)).is_complete
    assert router.process.wait(20) == 0


def test_a_new_token_is_used_as_soon_as_the_file_has_it(
    start_engine, start_router, token_file, tmp_path
):
    folder = tmp_path / "tokens"
    folder.mkdir()
    (folder / "token").write_text(TOKEN)
    engine = start_engine(router_token_path=str(folder))
    router = RouterProgram(folder, [engine.address]).wait_ready(1)
    try:
        (folder / "next").write_text("token-2")
        wait_until(lambda: is_token(engine, "token-2"))
        (folder / "token").write_text("token-2")
        (folder / "next").write_text(TOKEN)
        wait_until(lambda: is_token(engine, "token-2"))
        (folder / "next").unlink()
        wait_until(lambda: not is_token(engine, TOKEN))
        wait_until(lambda: router.count_ready() == 1)
        assert post(router, BODY).status_code == 200
    finally:
        router.close()


def is_token(engine: EchoEngine, token: str) -> bool:
    url = f"{engine.management_url}/internal/engine"
    return httpx.get(url, headers={HEADER_TOKEN: token}, timeout=10).status_code == 200


def test_a_client_that_disconnects_frees_its_engine(start_engine, start_router):
    engine = start_engine(step_seconds=0.1)
    router = start_router([engine])
    body = BODY | {"max_tokens": 200, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", router.url + COMPLETIONS, json=body, timeout=60) as response:
        next(response.iter_bytes())
    wait_until(lambda: running_on(router, engine) == 0, 10)
    assert router.metric("specdecode_router_attempts_total", result="disconnected") == 1
    state = httpx.get(
        f"{engine.management_url}/internal/engine", headers={HEADER_TOKEN: TOKEN}
    ).json()
    wait_until(lambda: state["requests"] == 0, 10)


def test_wrong_flags_are_refused_with_the_remedy(tmp_path, capsys):
    from specdecode_router.__main__ import main
    from specdecode_router.settings import parse_flags

    token = tmp_path / "token"
    token.write_text("t")
    for flags, remedy in (
        ([], "--engines"),
        (["--engines", "a:1"], "--token-file"),
        (["--engines", "a", "--token-file", str(token)], "HOST:PORT"),
        (["--service", "s", "--token-file", str(token)], "--namespace"),
        (["--engines", "a:1", "--token-file", str(token), "--retries", "-1"], "a number"),
    ):
        with pytest.raises(SystemExit):
            parse_flags(flags)
        assert remedy in capsys.readouterr().err
    assert main(["--engines", "a:1", "--token-file", str(tmp_path / "none")]) == 1
    assert "cannot be read" in capsys.readouterr().err
    settings = parse_flags(["--engines", "a:1,[::1]:2", "--token-file", str(token)])
    assert [str(each) for each in settings.engines] == ["a:1", "[::1]:2"]


def test_the_info_of_the_management_port_lists_the_engines(router):
    info = httpx.get(f"{router.management_url}/server_info").json()
    assert info["state"] == "ready"
    (engine,) = info["engines"]
    assert engine["reason"] is None
    assert len(engine["resume_id"]) == 32
    assert TOKEN not in json.dumps(info)
    assert httpx.put(f"{router.management_url}/metrics").status_code == 405
