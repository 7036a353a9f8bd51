"""Fields of vLLM and SGLang that change an answer: honoured, or refused by name."""

from typing import Any

import pytest

TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
BASE = {"prompt": "the quick brown fox", "max_tokens": 24, "temperature": 0}
MESSAGES = [{"role": "user", "content": "the fox"}]


def choice(server, **fields) -> dict[str, Any]:
    answer = server.post(TEXT, json=BASE | fields)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["choices"][0]
    return found


def refusal(server, path: str = TEXT, **fields) -> tuple[str, str]:
    body = BASE if path == TEXT else {"messages": MESSAGES}
    answer = server.post(path, json=body | fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    return error["param"], error["message"]


@pytest.mark.parametrize("fixture", ["built_server", "drafting_server"])
def test_min_tokens_puts_off_stop_tokens_and_stop_strings(request, fixture):
    server = request.getfixturevalue(fixture)
    free = choice(server, ignore_eos=True, logprobs=0)
    ids = server.post("/tokenize", json={"prompt": free["text"], "add_special_tokens": False})
    stop = ids.json()["tokens"][:8]
    fields = {"ignore_eos": True, "stop_token_ids": stop}
    assert choice(server, **fields)["finish_reason"] == "stop"
    longer = server.post(TEXT, json=BASE | fields | {"min_tokens": 20}).json()
    assert longer["usage"]["completion_tokens"] > 20
    first = free["text"][1]
    late = choice(server, ignore_eos=True, stop=first, min_tokens=24)
    assert late["text"] == free["text"], "the stop string is in the first tokens"
    assert choice(server, ignore_eos=True, stop=first)["text"] == free["text"][:1]


def test_a_stop_token_beyond_the_vocabulary_changes_nothing(built_server):
    fields = {"ignore_eos": True, "min_tokens": 3, "stop_token_ids": [2**31 - 1]}
    assert choice(built_server, **fields) == choice(built_server, ignore_eos=True)


def test_the_stop_string_may_be_part_of_the_text(echo_server):
    plain = choice(echo_server, prompt="the quick brown fox", stop="qui")
    kept = choice(echo_server, stop="qui", include_stop_str_in_output=True)
    trimmed_by_sglang = choice(echo_server, stop="qui", no_stop_trim=True)
    assert (plain["text"], kept["text"]) == ("the ", "the qui")
    assert trimmed_by_sglang == kept
    streamed = echo_server.post(
        TEXT,
        json=BASE | {"stop": "qui", "include_stop_str_in_output": True, "stream": True},
    ).text
    assert streamed.count("qui") == 1


def test_a_stop_token_may_be_part_of_the_text(echo_server):
    ids = echo_server.post("/tokenize", json={"prompt": "the quick"}).json()["tokens"]
    fields = {"stop_token_ids": [ids[2]]}
    plain = choice(echo_server, **fields)["text"]
    kept = choice(echo_server, **fields, include_stop_str_in_output=True)["text"]
    assert kept.startswith(plain)
    assert len(kept) > len(plain)


@pytest.mark.parametrize("fixture", ["built_server", "drafting_server"])
def test_bad_words_and_tokens_that_are_not_allowed_do_not_appear(request, fixture):
    server = request.getfixturevalue(fixture)
    free = choice(server, ignore_eos=True)["text"]
    ids = server.post("/tokenize", json={"prompt": free, "add_special_tokens": False})
    tokens = ids.json()["tokens"]
    word = server.post("/detokenize", json={"tokens": tokens[3:5]}).json()["prompt"]
    without = choice(server, ignore_eos=True, bad_words=[word.strip() or word])["text"]
    assert without != free
    allowed = sorted(set(tokens[::2]))
    fewer = choice(server, ignore_eos=True, allowed_token_ids=allowed, logprobs=0)
    spelled = {server.service.text.vocabulary.shown(each) for each in allowed}
    assert spelled.issuperset(fewer["logprobs"]["tokens"])


def test_prompt_logprobs_of_both_apis(built_server):
    ids = built_server.post("/tokenize", json={"prompt": BASE["prompt"]}).json()["tokens"]
    scored = choice(built_server, prompt_logprobs=2)
    assert scored["logprobs"] is None
    objects = scored["prompt_logprobs"]
    assert objects[0] is None
    assert len(objects) == len(ids)
    for token, places in zip(ids[1:], objects[1:], strict=True):
        assert str(token) in places
        assert 2 <= len(places) <= 3
        ranks = sorted(each["rank"] for each in places.values() if each["rank"] is not None)
        assert ranks == [1, 2]
        assert all(each["logprob"] <= 0 for each in places.values())
    echoed = choice(built_server, echo=True, logprobs=2)["logprobs"]["token_logprobs"]
    own = [
        places[str(token)]["logprob"] for token, places in zip(ids[1:], objects[1:], strict=True)
    ]
    assert own == echoed[1 : len(ids)]
    body = {"messages": MESSAGES, "max_tokens": 1, "prompt_logprobs": 0, "n": 2}
    answer = built_server.post(CHAT, json=body).json()
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    plain = choice(built_server, echo=True, prompt_logprobs=0)
    assert plain["text"].startswith(BASE["prompt"])
    assert plain["logprobs"] is None
    assert len(plain["prompt_logprobs"]) == len(ids)


def rendered(server, **fields) -> str:
    ids = server.post("/tokenize", json={"messages": MESSAGES} | fields).json()["tokens"]
    prompt = server.post("/detokenize", json={"tokens": ids}).json()["prompt"]
    assert isinstance(prompt, str)
    return prompt


def test_the_prompt_of_a_chat_ends_as_requested(echo_server):
    opened = "<|turn|>user\nthe fox<|end|>"
    assert rendered(echo_server) == opened + "<|turn|>assistant\n"
    assert rendered(echo_server, add_generation_prompt=False) == opened
    begun = [*MESSAGES, {"role": "assistant", "content": "it ju"}]
    fields = {"messages": begun, "add_generation_prompt": False}
    assert rendered(echo_server, **fields).endswith("it ju<|end|>")
    fields |= {"continue_final_message": True}
    assert rendered(echo_server, **fields).endswith("<|turn|>assistant\nit ju")
    answer = echo_server.post(CHAT, json=fields | {"max_tokens": 2})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"min_tokens": 25}, "min_tokens", "at most 24"),
        ({"min_tokens": 1, "guided_regex": "a+"}, "min_tokens", "structured output"),
        ({"bad_words": ["x"], "guided_regex": "a+"}, "bad_words", "structured output"),
        ({"allowed_token_ids": [5], "guided_regex": "a+"}, "allowed_token_ids", "structured"),
        ({"bad_words": ["x" * 200]}, "bad_words", "1 to 32 tokens"),
        ({"bad_words": [""]}, "bad_words[0]", "at least 1 character"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "at least 1 item"),
        ({"allowed_token_ids": [320]}, "allowed_token_ids", "0 to 319"),
        (
            {"allowed_token_ids": [7], "stop_token_ids": [7], "min_tokens": 2},
            "allowed_token_ids",
            "leaves no token",
        ),
        ({"prompt_logprobs": 21}, "prompt_logprobs", "less than or equal to 20"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "remove stream"),
        ({"prompt_logprobs": 1, "echo": True, "logprobs": 1}, "prompt_logprobs", "remove one"),
        ({"best_of": 3}, "best_of", "other than n"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(echo_server, fields, param, words):
    found, message = refusal(echo_server, **fields)
    assert found == param
    assert words in message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"continue_final_message": True}, "continue_final_message"),
        ({"echo": True}, "echo"),
        ({"tool_choice": "required"}, "tool_choice"),
    ],
)
def test_what_chat_cannot_honour_is_refused_by_name(echo_server, fields, param):
    found, _ = refusal(echo_server, CHAT, **fields)
    assert found == param


def test_fields_that_change_nothing_are_ignored(echo_server):
    fields = {
        "user": "u",
        "metadata": {"a": "b"},
        "store": False,
        "service_tier": "auto",
        "request_id": "r",
        "rid": "r",
        "length_penalty": 1.5,
        "spaces_between_special_tokens": False,
        "prediction": {"type": "content", "content": "x"},
        "xyzzy": [1],
    }
    assert choice(echo_server, **fields) == choice(echo_server)
