"""HEAD, CORS and `X-Request-Id` on every response."""

import logging

import httpx
import pytest

from specdecode_server.request_id import LOG_FORMAT, RequestIdFilter

BODY = {"prompt": "the fox", "max_tokens": 2}
ORIGIN = "https://chat.example.com"


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/version", "/openapi.json", "/metrics"])
def test_head_answers_as_get_without_a_body(echo_server, path):
    got, head = echo_server.get(path), httpx.head(echo_server.url + path, timeout=10)
    assert head.status_code == got.status_code == 200
    assert head.content == b""
    assert head.headers["content-type"] == got.headers["content-type"]


def test_head_needs_what_get_needs(echo_server):
    assert httpx.head(echo_server.url + "/v1/completions", timeout=10).status_code == 405
    assert httpx.head(echo_server.url + "/v1/nothing", timeout=10).status_code == 404


def preflight(server, origin: str, method: str = "POST") -> httpx.Response:
    headers = {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": "authorization,content-type",
    }
    return httpx.options(server.url + "/v1/completions", headers=headers, timeout=10)


def test_no_page_of_another_origin_may_use_the_api_by_default(echo_server):
    assert preflight(echo_server, ORIGIN).status_code == 405
    answer = echo_server.post("/v1/completions", json=BODY, headers={"origin": ORIGIN})
    assert "access-control-allow-origin" not in answer.headers


def test_pages_of_the_configured_origins_may_use_it(start_server, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    server = start_server(options={"cors_origins": [ORIGIN]}, api_key_path=keys)
    asked = preflight(server, ORIGIN)
    assert asked.status_code == 200, "a preflight carries no key"
    assert asked.headers["access-control-allow-origin"] == ORIGIN
    assert "authorization" in asked.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in asked.headers
    assert preflight(server, "https://other.example").status_code == 400
    assert preflight(server, ORIGIN, "PUT").status_code == 400
    refused = server.post("/v1/completions", json=BODY, headers={"origin": ORIGIN})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == ORIGIN, "a page may read the error"


def test_a_request_id_returns_with_the_response_of_any_status(echo_server):
    for path, status in (("/v1/models", 200), ("/v1/nothing", 404), ("/health", 200)):
        answer = httpx.get(echo_server.url + path, headers={"x-request-id": "job-7/a"}, timeout=10)
        assert (answer.status_code, answer.headers["x-request-id"]) == (status, "job-7/a")
    streamed = echo_server.post(
        "/v1/completions", json=BODY | {"stream": True}, headers={"x-request-id": "job-8"}
    )
    assert streamed.headers["x-request-id"] == "job-8"


def test_a_request_without_an_id_gets_one_of_its_own(echo_server):
    names = {echo_server.get("/health").headers["x-request-id"] for _ in range(3)}
    assert len(names) == 3
    assert all(len(name) == 32 for name in names)


def test_the_same_id_may_be_used_for_several_requests_at_once(echo_server):
    headers = {"x-request-id": "same"}
    for _ in range(2):
        answer = echo_server.post("/v1/completions", json=BODY | {"n": 4}, headers=headers)
        assert answer.status_code == 200


@pytest.mark.parametrize("name", ["", "a b", "x" * 129, "größe", "tab\there"])
def test_an_id_that_could_disturb_a_log_is_refused(echo_server, name):
    headers = {"x-request-id": name.encode()}
    answer = httpx.get(echo_server.url + "/health", headers=headers, timeout=10)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "invalid_request_id")
    assert error["param"] == "X-Request-Id"
    assert len(answer.headers["x-request-id"]) == 32


def test_the_log_names_the_request_of_a_line(start_server, eventually):
    server = start_server(step_seconds=0.02)
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    handler = Lines()
    handler.addFilter(RequestIdFilter())
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    log = logging.getLogger("specdecode_engine.serve.openai.streaming")
    log.addHandler(handler)
    level = log.level
    log.setLevel(logging.DEBUG)  # which also forgets what the logger remembers of its level
    try:
        url = server.url + "/v1/completions"
        body = {"prompt": "the fox", "max_tokens": 200, "ignore_eos": True, "stream": True}
        headers = {"x-request-id": "job-9"}
        with httpx.stream("POST", url, json=body, headers=headers, timeout=10) as answer:
            next(answer.iter_lines())
        eventually(lambda: len(lines) > 0)
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
    assert "streaming [job-9] client disconnected" in lines[0]
