"""`return_token_ids`, `continuous_usage_stats` and `truncate_prompt_tokens`."""

import json
from typing import Any

import pytest

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPTS = ["the quick brown fox", "jumps over the lazy dog"]
MESSAGES = [{"role": "user", "content": "the quick brown fox"}]


def events(server, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = server.post(path, json=body | {"stream": True})
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def whole(server, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = server.post(path, json=body)
    assert answer.status_code == 200, answer.text
    response: dict[str, Any] = answer.json()
    return response


def tokens_of(server, text: str) -> list[int]:
    tokens: list[int] = server.post("/tokenize", json={"prompt": text}).json()["tokens"]
    return tokens


def streamed_ids(chunks: list[dict[str, Any]], index: int) -> list[int]:
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    parts = [each.get("token_ids", []) for each in choices if each["index"] == index]
    return [token for part in parts for token in part]


@pytest.mark.parametrize("stop", [[], ["over the la"]])
def test_completions_return_the_ids_of_prompt_and_text(server, stop):
    body = {"prompt": PROMPTS, "n": 2, "max_tokens": 7, "seed": 1, "stop": stop}
    body |= {"return_token_ids": True}
    answer = whole(server, COMPLETIONS, body)
    chunks = events(server, COMPLETIONS, body)
    assert len(answer["choices"]) == 4
    for choice in answer["choices"]:
        index = choice["index"]
        prompt = tokens_of(server, PROMPTS[index // 2])
        assert choice["prompt_token_ids"] == prompt
        text = server.post("/detokenize", json={"tokens": choice["token_ids"]}).json()["prompt"]
        assert text.startswith(choice["text"].rstrip("\ufffd"))
        assert streamed_ids(chunks, index) == choice["token_ids"]
        mine = [each for chunk in chunks for each in chunk["choices"] if each["index"] == index]
        assert [each["prompt_token_ids"] for each in mine if "prompt_token_ids" in each] == [prompt]
    ids = sum(len(choice["token_ids"]) for choice in answer["choices"])
    assert ids == answer["usage"]["completion_tokens"]


def test_chat_returns_the_ids_of_the_prompt_once(server):
    body = {"messages": MESSAGES, "n": 2, "max_tokens": 5, "ignore_eos": True, "seed": 1}
    body |= {"return_token_ids": True}
    answer, chunks = whole(server, CHAT, body), events(server, CHAT, body)
    prompt = tokens_of_chat(server)
    assert answer["prompt_token_ids"] == prompt
    assert [each["prompt_token_ids"] for each in chunks if "prompt_token_ids" in each] == [prompt]
    for choice in answer["choices"]:
        assert len(choice["token_ids"]) == 5
        assert streamed_ids(chunks, choice["index"]) == choice["token_ids"]


def tokens_of_chat(server) -> list[int]:
    tokens: list[int] = server.post("/tokenize", json={"messages": MESSAGES}).json()["tokens"]
    return tokens


@pytest.mark.parametrize(
    ("path", "prompt"), [(COMPLETIONS, {"prompt": PROMPTS[0]}), (CHAT, {"messages": MESSAGES})]
)
def test_nothing_of_it_is_there_unless_it_is_requested(server, path, prompt):
    body = prompt | {"max_tokens": 4}
    for returned in (whole(server, path, body), *events(server, path, body)):
        assert "token_ids" not in json.dumps(returned)
    with_usage = events(server, path, body | {"stream_options": {"continuous_usage_stats": True}})
    assert not any(each.get("usage") for each in with_usage), "include_usage is not requested"


@pytest.mark.parametrize(
    ("path", "prompt"), [(COMPLETIONS, {"prompt": PROMPTS[0]}), (CHAT, {"messages": MESSAGES})]
)
def test_each_chunk_has_the_usage_so_far(server, path, prompt):
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = prompt | {"max_tokens": 9, "n": 2, "seed": 1, "ignore_eos": True}
    body |= {"stream_options": options}
    chunks = events(server, path, body)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 18
    assert len(set(counts)) > 3
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {
        whole(server, path, prompt)["usage"]["prompt_tokens"]
    }
    assert chunks[-1]["choices"] == []


def test_responses_refuse_token_ids(server):
    answer = server.post("/v1/responses", json={"input": "hi", "return_token_ids": True})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "return_token_ids")


def test_top_p_of_0_keeps_the_likeliest_token(server):
    for path, prompt in ((COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": MESSAGES})):
        assert server.post(path, json=prompt | {"top_p": 0}).status_code == 200
        assert server.post(path, json=prompt | {"top_p": -0.1}).status_code == 400


@pytest.mark.parametrize(("side", "part"), [(None, slice(-2, None)), ("right", slice(2))])
def test_prompts_are_cut_to_the_tokens_of_one_side(server, side, part):
    body = {"prompt": PROMPTS, "max_tokens": 2, "echo": True, "return_token_ids": True}
    cut = body | {"truncate_prompt_tokens": 2} | ({"truncation_side": side} if side else {})
    answer = whole(server, COMPLETIONS, cut)
    assert answer["usage"]["prompt_tokens"] == 4
    for choice, prompt in zip(answer["choices"], PROMPTS, strict=True):
        kept = tokens_of(server, prompt)[part]
        assert choice["prompt_token_ids"] == kept
        text = server.post("/detokenize", json={"tokens": kept}).json()["prompt"]
        assert choice["text"].startswith(text)
    long = cut | {"truncate_prompt_tokens": 1000}
    assert whole(server, COMPLETIONS, long)["usage"]["prompt_tokens"] > 4
    chat = {"messages": MESSAGES, "max_tokens": 2, "return_token_ids": True}
    chat |= {key: value for key, value in cut.items() if key.startswith("trunc")}
    assert whole(server, CHAT, chat)["prompt_token_ids"] == tokens_of_chat(server)[part]


def test_a_prompt_is_cut_to_what_fits_next_to_the_answer(server):
    room = server.service.engine.context_length - 3
    body = {"prompt": [5] * (room + 50), "max_tokens": 3, "truncate_prompt_tokens": -1}
    assert whole(server, COMPLETIONS, body)["usage"]["prompt_tokens"] == room


@pytest.mark.parametrize("value", [0, -2, 1.5, "all"])
def test_a_number_of_tokens_that_means_nothing_is_refused(server, value):
    for path, prompt in ((COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": MESSAGES})):
        answer = server.post(path, json=prompt | {"truncate_prompt_tokens": value})
        assert (answer.status_code, answer.json()["error"]["param"]) == (
            400,
            "truncate_prompt_tokens",
        )
