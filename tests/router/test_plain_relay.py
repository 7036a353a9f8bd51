"""A router in front of engines of another runtime, through their own API."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.router.programs import wait_until
from specdecode_api import names
from specdecode_router.discovery import engines_of
from specdecode_router.plain.relay import is_plain_path
from specdecode_router.settings import EngineAddress, EngineRuntime, parse_flags
from tests.router.recorded_engine import BODY, COMPLETIONS, DONE, EVENTS


def test_a_request_goes_elsewhere_if_an_engine_shuts_down(two, start):
    router = start()
    two[0].is_shutting_down = True
    answers = [
        httpx.post(router.url + COMPLETIONS, json=BODY | {"prompt": f"{number} apples"})
        for number in range(12)
    ]
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.json()["from"] for answer in answers} == {"two"}
    assert two[0].paths, "no request met the engine that shuts down"
    two[1].is_shutting_down = True
    wait_until(
        lambda: (
            httpx.post(router.url + COMPLETIONS, json=BODY, headers={names.HEADER_TIMEOUT: "0.5"})
            .json()
            .get("error", {})
            .get("message")
            is not None
        ),
        what="an error",
    )


def test_answers_pass_as_they_are_whole_and_streamed(two, start):
    router = start()
    assert httpx.post(router.url + COMPLETIONS, json=BODY).json()["from"] in ("one", "two")
    streamed = httpx.post(router.url + COMPLETIONS, json=BODY | {"stream": True})
    assert streamed.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert streamed.content == EVENTS + DONE
    assert httpx.get(f"{router.url}/v1/models").json()["data"][0]["id"] in ("one", "two")
    assert httpx.get(router.url + names.PATH_HEALTH).status_code == 200


def test_a_stream_of_a_lost_engine_ends_with_an_error(two, start):
    router = start()
    for each in two:
        each.cuts_streams = True
    streamed = httpx.post(router.url + COMPLETIONS, json=BODY | {"stream": True})
    assert streamed.content.startswith(EVENTS)
    last = streamed.content.strip().rpartition(b"data: ")[2]
    assert json.loads(last)["error"]["code"] == "engine_lost"


def test_paths_that_change_an_engine_are_not_served(two, start):
    router = start()
    for path in ("/v1/load_lora_adapter", "/load_lora_adapter", "/flush_cache", "/sleep", "/v1/x"):
        assert httpx.post(router.url + path, json={}).status_code == 404
    assert httpx.get(f"{router.url}/metrics").status_code == 404
    assert not any(each.paths for each in two)
    assert not is_plain_path("POST", "/v1/models/../load_lora_adapter")


def test_the_router_checks_keys_and_passes_none_on(two, start, tmp_path: Path):
    keys = tmp_path / "keys"
    keys.write_text("first\nsecond\n")
    router = start("--api-key-file", str(keys))
    for path in (COMPLETIONS, "/tokenize"):
        refused = httpx.post(router.url + path, json=BODY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        for key in ("first", "second"):
            bearer = {"authorization": f"Bearer {key}"}
            assert httpx.post(router.url + path, json=BODY, headers=bearer).status_code == 200
    seen = [header for each in two for header in each.headers]
    assert seen
    assert not any("authorization" in each or "x-api-key" in each for each in seen)
    keys.write_text("third\n")
    first = {"authorization": "Bearer first"}
    wait_until(
        lambda: httpx.post(router.url + COMPLETIONS, json=BODY, headers=first).status_code == 401,
        what="the end of the old key",
    )


@pytest.mark.parametrize("conditions", [{"ready": False}, {"ready": True, "terminating": True}])
def test_conditions_of_an_endpoint_take_an_engine_out(conditions):
    """An engine of another runtime does not report that it shuts down."""

    def endpoints(found: dict[str, bool]) -> list[dict[str, Any]]:
        endpoint = {"addresses": ["10.0.0.1"], "conditions": {"serving": True} | found}
        ports = [{"name": "http", "port": 8000}, {"name": "management", "port": 8001}]
        return [{"ports": ports, "endpoints": [endpoint]}]

    vllm = EngineRuntime.VLLM
    assert [*engines_of(endpoints({"ready": True}), "chat", vllm)] == [
        EngineAddress("10.0.0.1", 8000)
    ]
    assert not engines_of(endpoints(conditions), "chat", vllm)
    assert [*engines_of(endpoints(conditions), "chat")] == [EngineAddress("10.0.0.1", 8001)]


@pytest.mark.parametrize(
    ("flags", "remedy"),
    [
        (["--runtime", "vllm", "--token-file", "t"], "know no token; remove it"),
        (["--api-key-file", "k"], "start them with --api-key-file"),
        (["--runtime", "sglang"], "invalid"),
        (["--max-body-bytes", "4096", "--token-file", "t"], "report their limit"),
        (["--runtime", "vllm", "--max-body-bytes", "10"], "from 1024 to 1073741824"),
    ],
)
def test_flags_of_the_runtime_are_checked(flags, remedy, capsys):
    with pytest.raises(SystemExit):
        parse_flags(["--engines", "127.0.0.1:1", *flags])
    assert remedy in capsys.readouterr().err
