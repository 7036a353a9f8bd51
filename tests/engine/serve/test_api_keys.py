"""API keys: which requests are authorized, how others are refused, and that no key leaks."""

import asyncio
import hmac
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import httpx
import openai
import pytest

from specdecode_api.report import TerminationMessage, TerminationReason
from specdecode_server.api_keys import (
    ApiKeyStore,
    NoApiKeys,
    digests_of,
    read_digests,
)

KEY, OTHER = "sk-first-3f9c1d77", "sk-other-b2e04a58"
OPEN = ("/startup", "/ready", "/live", "/metrics", "/server_info")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"{KEY}\n\n  {OTHER}  \n")
    return path


@pytest.fixture
def server(start_server, file):
    return start_server(api_key_path=file)


def ask(server, key=None, scheme="Bearer"):
    headers = {} if key is None else {"authorization": f"{scheme} {key}"}
    body = {"prompt": "the fox", "max_tokens": 2}
    return server.post("/v1/completions", json=body, headers=headers)


def completion(server, key):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as client:
        return client.completions.create(model="echo", prompt="the fox", max_tokens=2)


def test_openais_client_gets_in_with_each_key(server):
    for key in (KEY, OTHER):
        assert completion(server, key).choices[0].text


def test_openais_client_gets_the_error_of_a_wrong_key_as_from_openai(server):
    with pytest.raises(openai.AuthenticationError) as refusal:
        completion(server, "sk-wrong")
    assert refusal.value.code == "invalid_api_key"
    assert "request a key from the server's administrator" in str(refusal.value)
    assert "sk-wrong" not in str(refusal.value)


@pytest.mark.parametrize(
    ("key", "scheme", "status"),
    [
        (KEY, "Bearer", 200),
        (KEY, "bearer", 200),
        (None, "", 401),
        (KEY, "Basic", 401),
        ("none", "Bearer", 401),
        (KEY[:-1], "Bearer", 401),
        (KEY + "x", "Bearer", 401),
        (f"{KEY} {OTHER}", "Bearer", 401),
    ],
)
def test_only_a_whole_key_in_the_right_header_counts(key, scheme, status, server):
    assert ask(server, key, scheme).status_code == status


def test_a_refusal_is_in_openais_form_with_the_remedy(server):
    answer = ask(server)
    assert answer.headers["www-authenticate"] == "Bearer"
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
    assert "Authorization: Bearer KEY" in error["message"]
    assert re.search(r'http_errors_total{[^}]*status="401"', server.get("/metrics").text)


def test_what_clients_call_and_what_changes_the_engine_is_guarded_and_nothing_else(server):
    for path in OPEN:
        assert server.get(path).status_code == 200, path
    assert server.get("/v1/models").status_code == 401
    assert server.get("/speculation/table").status_code == 200
    put = {"url": server.url + "/speculation/table", "json": {"table": {"1": [0]}}}
    assert httpx.put(**put).status_code == 401
    headers = {"authorization": f"Bearer {KEY}"}
    assert httpx.put(**put, headers=headers).json()["error"]["code"] == "bad_table"


@pytest.mark.parametrize("own_port", [False, True])
def test_adapters_are_changed_with_a_key_alone(start_server, file, free_port, own_port):
    port = free_port if own_port else 0
    server = start_server(api_key_path=file, management_port=port, owner="3f6c-uid")
    for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        for name, value, status in (
            ("authorization", f"Bearer {KEY}", 403),  # the engine was started without a root
            ("x-specdecode-owner", "3f6c-uid", 401),
            ("accept", "*/*", 401),
        ):
            url, headers = server.management_url + path, {name: value}
            assert httpx.post(url, json={}, headers=headers).status_code == status


def test_the_owner_may_exchange_the_table_and_nothing_else(start_server, file):
    """The operator, which may not read the Secret; a wrong table gets it as far as its mistakes."""
    server = start_server(api_key_path=file, owner="3f6c-uid")
    for owner, status in (("3f6c-uid", 400), ("3f6c-ui", 401), ("", 401)):
        headers = {"x-specdecode-owner": owner}
        put = httpx.put(
            server.url + "/speculation/table", json={"table": {"1": [0]}}, headers=headers
        )
        assert put.status_code == status
    asked = httpx.get(server.url + "/v1/models", headers={"x-specdecode-owner": "3f6c-uid"})
    assert asked.status_code == 401
    assert "3f6c-uid" not in server.get("/server_info").text


def test_a_changed_file_counts_without_a_restart(server, file, eventually):
    file.write_text("sk-third\n")
    eventually(lambda: ask(server, "sk-third").status_code == 200)
    assert ask(server, KEY).status_code == 401


def test_a_file_that_is_emptied_lets_nobody_in(server, file, eventually):
    file.write_text("")
    eventually(lambda: ask(server, KEY).status_code == 401)


def test_a_mounted_secret_is_read_and_followed(tmp_path, start_server, eventually):
    """The layout of the kubelet: keys are links into a folder that is exchanged as a whole."""
    mount = tmp_path / "mount"

    def project(version, **keys):
        data = mount / f"..{version}"
        data.mkdir(parents=True)
        for name, key in keys.items():
            (data / name).write_text(key)
            if not (mount / name).is_symlink():
                (mount / name).symlink_to(Path("..data") / name)
        fresh = mount / "..data_tmp"
        fresh.symlink_to(data.name)
        os.replace(fresh, mount / "..data")

    project("1", team=KEY, guest=OTHER)
    server = start_server(api_key_path=mount)
    assert [ask(server, key).status_code for key in (KEY, OTHER)] == [200, 200]
    project("2", team="sk-next", guest=OTHER)
    eventually(lambda: ask(server, "sk-next").status_code == 200)
    assert [ask(server, key).status_code for key in (KEY, OTHER)] == [401, 200]


def test_a_call_is_compared_with_every_key_in_constant_time(file, monkeypatch):
    compared: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return real(a, b)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    keys = ApiKeyStore(file)
    for key in (KEY, OTHER, "x", ""):
        compared.clear()
        keys.allow(key)
        assert len(compared) == 2
        assert {len(part) for pair in compared for part in pair} == {32}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "no API key in"),
        ("  \n\n", "no API key in"),
        ("sk-a\nsk b\n", "key 2 of 2 in"),
        ("schlüssel", "a character outside ASCII"),
    ],
)
def test_a_bad_file_is_refused_with_the_remedy(text, expected, tmp_path):
    path = tmp_path / "keys"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(NoApiKeys, match=expected) as refusal:
        read_digests(path)
    assert all(line.strip() not in str(refusal.value) for line in text.splitlines() if line.strip())


def test_keys_that_become_unreadable_count_no_longer_until_they_are_back(file):
    async def scenario():
        keys = ApiKeyStore(file)
        text = file.read_text()
        file.unlink()
        await keys.refresh()
        before = keys.allow(KEY)
        file.write_text(text)
        await keys.refresh()
        return before, keys.allow(KEY)

    assert asyncio.run(scenario()) == (False, True)


def test_a_program_without_keys_ends_and_reports_why(tmp_path, model_folder):
    words = tmp_path / "words"
    flags = [
        "--model-path",
        str(model_folder),
        "--port",
        "0",
        "--management-port",
        "0",
        "--api-key-file",
        str(tmp_path / "k"),
    ]
    ended = subprocess.run(
        [sys.executable, "-m", "specdecode_engine", *flags],
        env={**os.environ, "SPECDECODE_TERMINATION_MESSAGE_PATH": str(words)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1
    message = TerminationMessage.decode(words.read_text())
    assert message is not None
    assert message.reason == TerminationReason.API_KEYS_MISSING
    assert "No such file" in message.message
    assert "kubectl create secret generic" in message.message


def test_no_key_is_shown_anywhere(file, start_server, caplog, eventually):
    with caplog.at_level(0):
        server = start_server(api_key_path=file)
        shown = [ask(server, key).text for key in (KEY, OTHER, "sk-wrong")]
        shown += [server.get(path).text for path in (*OPEN, "/v1/models", "/speculation/table")]
        file.write_text("sk-third\n")
        eventually(lambda: ask(server, "sk-third").status_code == 200)
        file.write_text("")
        eventually(lambda: ask(server, "sk-third").status_code == 401)
    assert "1 are valid now" in caplog.text
    assert "every request is refused: no API key" in caplog.text
    everything = "\n".join([*shown, caplog.text, repr(server.service.keys)])
    assert all(key not in everything for key in (KEY, OTHER, "sk-third", "sk-wrong"))


def test_keys_of_the_command_line_stay_valid_when_the_file_has_none(file):
    store = ApiKeyStore(file, digests_of("--api-key", ["sk-fixed"]))
    assert all(map(store.allow, (KEY, OTHER, "sk-fixed")))
    file.write_text("")
    asyncio.run(store.refresh())
    assert [store.allow(key) for key in (KEY, "sk-fixed")] == [False, True]
    assert store.error.startswith("every request with their keys is refused: no API key in")


def test_keys_without_a_file_are_read_once():
    store = ApiKeyStore(None, digests_of("--api-key", ["sk-fixed"]))
    asyncio.run(store.refresh())
    assert [store.allow(key) for key in (KEY, "sk-fixed")] == [False, True]


PIECES = (
    b"\n", b"\n", b"\r", b"\r\n", b" ", b"\t", b"\x00", b"\xff", b"\xc3", "é".encode(), b"\x85",
    "\u2028".encode(), b"canary-1", b"canary-2", b"c" * 100_000, b"\xef\xbb\xbf", b"#", b"=",
    b"\x7f",
)  # fmt: skip


def test_a_file_of_any_bytes_is_taken_or_refused_without_its_keys(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    rng, taken = random.Random(seed), 0
    place = tmp_path / "keys"
    place.write_text("valid\n")
    store = ApiKeyStore(place)
    for _ in range(300):
        content = b"".join(rng.choices(PIECES, k=rng.randrange(1, 6)))
        place.write_bytes(content)
        asyncio.run(store.refresh())
        assert not store.allow("valid"), seed
        if store.error:
            assert "canary" not in store.error, (seed, store.error)
            assert "ccc" not in store.error, seed
            assert not store.allow("canary-1"), seed
        else:
            taken += 1
            lines = [line.strip() for line in content.decode().splitlines() if line.strip()]
            assert lines, (seed, content)
            assert all(map(store.allow, lines)), (seed, content)
    assert 0 < taken < 300, seed
