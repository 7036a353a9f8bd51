"""The page at `/`: where it is served, with which headers, and whose requests are refused."""

import base64
import hashlib
import re

import httpx
import pytest

from specdecode_engine.serve.page.host_guard import is_loopback

MISDIRECTED = 421
POLICY = {
    "default-src": "'none'",
    "connect-src": "'self'",
    "img-src": "data:",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}


def test_the_page_is_one_document_that_loads_nothing(echo_server):
    answer = echo_server.get("/")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert "set-cookie" not in answer.headers
    assert not re.search(r"https?://|src=|href=|innerHTML|localStorage|cookie", answer.text)


def test_its_policy_permits_its_own_style_and_script_alone(echo_server):
    answer = echo_server.get("/")
    header = answer.headers["content-security-policy"]
    policy = dict(part.strip().split(" ", 1) for part in header.split(";"))
    for name in ("script", "style"):
        (text,) = re.findall(rf"<{name}>(.*?)</{name}>", answer.text, re.S)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert policy.pop(f"{name}-src") == f"'sha256-{digest}'"
    assert policy == POLICY


@pytest.mark.parametrize(
    ("server", "status"),
    [
        ({}, 200),
        ({"page": False}, 404),
        ({"host": "0.0.0.0"}, 404),
        ({"host": "0.0.0.0", "page": True}, 200),
    ],
)
def test_the_page_is_on_by_default_on_loopback_alone(start_process, server, status):
    engine = start_process(**{"host": "127.0.0.1", **server})
    assert httpx.get(f"http://127.0.0.1:{engine.port}/").status_code == status


def test_the_page_is_on_the_port_of_the_api(start_server, free_port):
    server = start_server(management_port=free_port)
    assert server.get("/").status_code == 200
    assert httpx.get(server.management_url + "/").status_code == 404


@pytest.mark.parametrize("host", ["attacker.example", "127.0.0.1.attacker.example", "10.0.0.1:80"])
@pytest.mark.parametrize("path", ["/", "/v1/models", "/openapi.json", "/v1/messages"])
def test_a_loopback_server_without_keys_refuses_other_hosts(echo_server, host, path):
    """A web page whose name an attacker points to 127.0.0.1 sends that name."""
    answer = httpx.get(echo_server.url + path, headers={"host": host})
    assert answer.status_code == MISDIRECTED
    error = answer.json()["error"]
    assert "127.0.0.1" in error["message"]
    assert (answer.json().get("type") == "error") == path.startswith("/v1/messages")


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:9", "LOCALHOST.", "127.0.0.2:1", "[::1]:8"]
)
def test_names_of_this_machine_are_accepted(echo_server, host):
    assert httpx.get(echo_server.url + "/v1/models", headers={"host": host}).status_code == 200


def test_with_a_key_any_host_is_accepted(start_server, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("sk-one\n")
    server = start_server(api_key_path=keys)
    headers = {"host": "chat.example.com", "authorization": "Bearer sk-one"}
    assert httpx.get(server.url + "/v1/models", headers=headers).status_code == 200


def test_a_server_for_other_machines_accepts_any_host(start_process):
    engine = start_process(host="0.0.0.0")
    url = f"http://127.0.0.1:{engine.port}/v1/models"
    assert httpx.get(url, headers={"host": "chat.example.com"}).status_code == 200


@pytest.mark.parametrize(
    ("name", "is_so"),
    [
        ("127.0.0.1", True), ("127.255.0.9", True), ("::1", True), ("[::1]", True),
        ("localhost", True), ("a.localhost", True), ("0.0.0.0", False), ("::", False),
        ("localhost.example", False), ("", False), ("2130706433", False), ("127.1", False),
    ],
)  # fmt: skip
def test_addresses_of_this_machine_are_known(name, is_so):
    assert is_loopback(name) is is_so
