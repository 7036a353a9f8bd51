"""`return_speculation` in events of streams, and GET /v1/speculation."""

import json
from typing import Any

import httpx
import pytest

from tests.engine.serve.conftest import RunningServer, wait_until

WORDS = "the quick brown fox jumps over the lazy dog"
MESSAGES = [{"role": "user", "content": WORDS}]
BODIES = {
    "/v1/completions": {"prompt": WORDS, "max_tokens": 40},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 40},
    "/v1/responses": {"input": WORDS, "max_output_tokens": 40},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 40, "model": "echo"},
}


def events(server: RunningServer, path: str, **fields: object) -> list[dict[str, Any]]:
    body = BODIES[path] | {"temperature": 0, "ignore_eos": True, "stream": True} | fields
    if path in ("/v1/completions", "/v1/chat/completions"):
        body["stream_options"] = {"include_usage": True}
    answer = server.post(path, json=body)
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


def usage_of(found: list[dict[str, Any]]) -> dict[str, int]:
    """The figures of the call, from the last events."""
    holders = [each.get("response") or each for each in found]
    usage = next(each["usage"] for each in reversed(holders) if each.get("usage"))
    return {
        "tokens": usage.get("completion_tokens") or usage["output_tokens"],
        "accepted_tokens": usage["specdecode"]["num_accepted_tokens"],
    }


@pytest.mark.parametrize(
    ("path", "fields"),
    [*((path, {}) for path in BODIES), *((path, {"n": 2}) for path in [*BODIES][:2])],
)
def test_the_counts_of_events_add_up_to_usage(
    drafting_server: RunningServer, path: str, fields: dict[str, int]
) -> None:
    found = events(drafting_server, path, return_speculation=True, **fields)
    counts = [each["speculation"] for each in found if "speculation" in each]
    sums = {name: sum(each[name] for each in counts) for name in ("tokens", "accepted_tokens")}
    assert sums == usage_of(found)
    assert 0 < sums["accepted_tokens"] < sums["tokens"]
    assert all(0 <= each["accepted_tokens"] <= each["tokens"] for each in counts)
    assert any(each["tokens"] > 1 for each in counts)


@pytest.mark.parametrize("path", BODIES)
def test_without_the_field_events_are_as_before(drafting_server: RunningServer, path: str) -> None:
    plain = events(drafting_server, path)
    assert not any("speculation" in each for each in plain)
    off = events(drafting_server, path, return_speculation=False)
    with_counts = events(drafting_server, path, return_speculation=True)
    assert len(off) == len(plain)
    bare = [{k: v for k, v in each.items() if k != "speculation"} for each in with_counts]
    assert texts(bare) == texts(plain)


def texts(found: list[dict[str, Any]]) -> str:
    """All text of a stream."""
    parts = []
    for each in found:
        for choice in each.get("choices", ()):
            parts.append(choice.get("text") or choice.get("delta", {}).get("content") or "")
        delta = each.get("delta")
        parts.append(delta if isinstance(delta, str) else (delta or {}).get("text") or "")
    return "".join(parts)


def test_the_report_has_steps_reason_and_rates(drafting_server: RunningServer) -> None:
    events(drafting_server, "/v1/completions")
    wait_until(lambda: drafting_server.get("/v1/speculation").json()["rates"]["seconds"] > 0)
    events(drafting_server, "/v1/completions")
    found = drafting_server.get("/v1/speculation").json()
    assert (found["model"], found["algorithm"]) == ("echo", "STANDALONE")
    assert found["num_steps"] in found["ranges"][0]["candidate_steps"]
    assert found["reason"]
    rates = found["rates"]
    assert rates["accept_length"] > 1
    assert 0 < rates["accepted_share"] <= 1
    assert rates["output_tokens_per_second"] > 0
    assert found["running_requests"] == found["waiting_requests"] == 0


def test_the_report_needs_a_key_where_there_are_keys(start_server, tmp_path, free_port):
    keys = tmp_path / "keys"
    keys.write_text("sk-one\n")
    server = start_server(api_key_path=keys)
    assert server.get("/v1/speculation").status_code == 401
    headers = {"authorization": "Bearer sk-one"}
    assert httpx.get(server.url + "/v1/speculation", headers=headers).status_code == 200
