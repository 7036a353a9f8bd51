"""The prompt tokens read from the prefix cache, as `usage` reports them, on the real core."""

from collections.abc import Iterator
from itertools import count

import pytest

from tests.engine.serve.conftest import RunningServer, real_server

PAGE_SIZE = 16
_prompts = count(100)


@pytest.fixture(scope="module")
def reporting_server() -> Iterator[RunningServer]:
    """A server that reports details of prompts."""
    running = real_server({}, prompt_tokens_details=True)
    yield running.wait_ready()
    running.close()


@pytest.fixture
def prompt_ids() -> list[int]:
    """50 tokens that no other prompt begins with."""
    return [next(_prompts), *range(200, 249)]


def complete(server: RunningServer, prompt: object, **fields: object) -> dict[str, object]:
    body = {"prompt": prompt, "max_tokens": 2, **fields}
    answer = server.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    usage: dict[str, object] = answer.json()["usage"]
    return usage


def test_whole_pages_of_a_repeated_prompt_are_cached(reporting_server, prompt_ids):
    first = complete(reporting_server, prompt_ids)
    again = complete(reporting_server, prompt_ids)
    shorter = complete(reporting_server, prompt_ids[:20])
    assert first["prompt_tokens_details"] == {"cached_tokens": 0}
    assert again["prompt_tokens_details"] == {"cached_tokens": 3 * PAGE_SIZE}
    assert shorter["prompt_tokens_details"] == {"cached_tokens": PAGE_SIZE}
    assert again["prompt_tokens"] == first["prompt_tokens"] == 50


def test_each_prompt_counts_once_for_any_number_of_choices(reporting_server, prompt_ids):
    complete(reporting_server, prompt_ids)
    new = [next(_prompts), *prompt_ids[1:]]
    usage = complete(reporting_server, [prompt_ids, new], n=3)
    assert usage["prompt_tokens"] == 100
    assert usage["prompt_tokens_details"] == {"cached_tokens": 3 * PAGE_SIZE}


def test_chat_and_its_stream_report_cached_tokens(reporting_server):
    client = reporting_server.client
    words = f"{next(_prompts)} is where it begins; " + "the quick brown fox " * 10
    options = {"model": "echo", "messages": [{"role": "user", "content": words}], "max_tokens": 2}
    client.chat.completions.create(**options)
    usage = client.chat.completions.create(**options).usage
    cached = usage.prompt_tokens_details.cached_tokens
    assert cached % PAGE_SIZE == 0
    assert usage.prompt_tokens - PAGE_SIZE <= cached < usage.prompt_tokens
    *_, last = client.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    )
    assert last.usage.prompt_tokens_details.cached_tokens == cached


def test_responses_report_cached_tokens_as_details_of_the_input(reporting_server):
    client = reporting_server.client
    words = f"{next(_prompts)} is where it begins; " + "the lazy dog " * 10
    options = {"model": "echo", "input": words, "max_output_tokens": 2}
    first = client.responses.create(**options).usage.input_tokens_details.cached_tokens
    again = client.responses.create(**options).usage.input_tokens_details.cached_tokens
    assert (first, again > 0) == (0, True)


def test_nothing_is_reported_by_default(built_server, prompt_ids):
    complete(built_server, prompt_ids)
    assert "prompt_tokens_details" not in complete(built_server, prompt_ids)
    client, words = built_server.client, "the quick brown fox " * 10
    for _ in range(2):
        usage = client.responses.create(model="echo", input=words, max_output_tokens=2).usage
        assert usage.input_tokens_details.cached_tokens == 0
