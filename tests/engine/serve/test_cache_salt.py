"""The field `cache_salt`: which requests share pages of the prefix cache."""

from collections.abc import Iterator

import pytest

from tests.engine.serve.conftest import RunningServer, real_server

PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")
WORDS = "the quick brown fox jumps over the lazy dog " * 8


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    running = real_server({}, prompt_tokens_details=True)
    yield running.wait_ready()
    running.close()


def post(server: RunningServer, path: str, words: str, **fields: object) -> tuple[object, int]:
    """Send a prompt; returns the answer and how many tokens came from the prefix cache."""
    messages = [{"role": "user", "content": words}]
    body: dict[str, object] = {
        "/v1/completions": {"prompt": words, "max_tokens": 8},
        "/v1/chat/completions": {"messages": messages, "max_tokens": 8},
        "/v1/responses": {"input": words, "max_output_tokens": 8},
        "/v1/messages": {"messages": messages, "max_tokens": 8, "model": "echo"},
    }[path]
    answer = server.post(path, json=body | {"temperature": 0} | fields)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    usage = found["usage"]
    details = (
        usage.get("prompt_tokens_details")
        or usage.get("input_tokens_details")
        or {"cached_tokens": usage.get("cache_read_input_tokens")}
    )
    text = found.get("choices") or found.get("content") or found["output"][0]["content"]
    return text, details["cached_tokens"]


@pytest.mark.parametrize("path", PATHS)
def test_answers_of_other_salts_share_no_pages(server: RunningServer, path: str) -> None:
    words = f"{path}: {WORDS}"
    salts: list[dict[str, object]] = [{}, {"cache_salt": "a"}, {"cache_salt": "b" * 256}]
    first = [post(server, path, words, **salt) for salt in salts]
    again = [post(server, path, words, **salt) for salt in salts]
    assert [cached for _, cached in first] == [0, 0, 0]
    assert all(cached > 0 for _, cached in again)
    assert len({repr(text) for text, _ in (*first, *again)}) == 1


def test_the_beginning_of_a_prompt_is_shared_under_its_salt(server: RunningServer) -> None:
    post(server, PATHS[0], "begins: " + WORDS, cache_salt="tenant")
    assert post(server, PATHS[0], f"begins: {WORDS} and ends", cache_salt="tenant")[1] > 0
    assert post(server, PATHS[0], f"begins: {WORDS} and ends", cache_salt="other")[1] == 0


@pytest.mark.parametrize("bad", ["", "s" * 257, 7, ["a"]])
def test_a_salt_that_is_not_a_short_text_is_refused_by_name(
    echo_server: RunningServer, bad: object
) -> None:
    answer = echo_server.post("/v1/completions", json={"prompt": "the fox", "cache_salt": bad})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "cache_salt")


def test_any_text_is_a_salt(server: RunningServer) -> None:
    for salt in ("\x00", "\N{GRINNING FACE}", "\u202e"):
        assert post(server, PATHS[0], "the fox " + WORDS, cache_salt=salt)[1] == 0
        assert post(server, PATHS[0], "the fox " + WORDS, cache_salt=salt)[1] > 0
