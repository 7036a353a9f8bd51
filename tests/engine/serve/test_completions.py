"""POST /v1/completions over real HTTP with the official client."""

import math

import openai
import pytest

PROMPT = "the quick brown fox jumps over the lazy dog"


@pytest.fixture
def client(server):
    # OpenAI streams completions with a finish_reason of null, which its own strict types refuse.
    return server.connect(is_strict=False)


def complete(client, **fields):
    options = {"model": "echo", "prompt": PROMPT, "temperature": 0, "max_tokens": 24}
    return client.completions.create(**(options | fields))


def test_answers_with_text_and_usage(server):
    answer = complete(server.client)
    choice = answer.choices[0]
    assert choice.text
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage.prompt_tokens > 0
    assert 0 < answer.usage.completion_tokens <= 24
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.completion_tokens_details.accepted_prediction_tokens >= 0
    assert answer.model == "echo"


def test_stream_is_the_same_text_with_usage_at_the_end(client):
    fields = {"extra_body": {"ignore_eos": True}}
    whole = complete(client, **fields)
    chunks = list(complete(client, **fields, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].text for c in chunks if c.choices) == whole.choices[0].text
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len(chunks) > 3


def test_default_length_is_16(client):
    answer = client.completions.create(
        model="echo", prompt=PROMPT, temperature=0, extra_body={"ignore_eos": True}
    )
    assert answer.usage.completion_tokens == 16


def test_prompts_as_ids_lists_and_text_agree(client, server):
    ids = list(server.service.text.encode(PROMPT))
    text = complete(client).choices[0].text
    assert complete(client, prompt=ids).choices[0].text == text
    both = complete(client, prompt=[PROMPT, PROMPT])
    assert [choice.text for choice in both.choices] == [text, text]
    assert [choice.index for choice in both.choices] == [0, 1]
    assert both.usage.prompt_tokens == 2 * len(ids)
    assert complete(client, prompt=[ids, ids]).choices[1].text == text


def test_n_counts_the_prompt_once_and_seeds_differ(client, server):
    one = complete(client, temperature=1, seed=7)
    three = complete(client, temperature=1, seed=7, n=3)
    assert len(three.choices) == 3
    assert three.choices[0].text == one.choices[0].text
    assert three.usage.prompt_tokens == one.usage.prompt_tokens
    again = complete(client, temperature=1, seed=7, n=3)
    assert [c.text for c in again.choices] == [c.text for c in three.choices]


def test_streams_of_n_choices_join_to_the_same_texts(client):
    whole = complete(client, temperature=1, seed=3, n=3)
    texts = ["", "", ""]
    for chunk in complete(client, temperature=1, seed=3, n=3, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_cuts_wherever_it_falls(client, server, stream):
    text = complete(client, extra_body={"ignore_eos": True}).choices[0].text
    for start in range(2, len(text) - 3, 3):
        stop = text[start : start + 3]
        expected = text[: text.find(stop)]
        answer = complete(client, stop=[stop], stream=stream, extra_body={"ignore_eos": True})
        pieces = list(answer) if stream else [answer]
        assert "".join(piece.choices[0].text for piece in pieces) == expected
        assert pieces[-1].choices[0].finish_reason == "stop"


def test_echo_puts_the_prompt_before_the_answer(client):
    text = complete(client).choices[0].text
    assert complete(client, echo=True).choices[0].text == PROMPT + text
    chunks = list(complete(client, echo=True, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == PROMPT + text


def test_logprobs_have_one_entry_per_token_of_the_text(client):
    choice = complete(client, logprobs=2).choices[0]
    logprobs = choice.logprobs
    assert "".join(logprobs.tokens) == choice.text
    assert all(value <= 0 and math.isfinite(value) for value in logprobs.token_logprobs)
    assert all(2 <= len(top) <= 3 for top in logprobs.top_logprobs)
    for token, offset in zip(logprobs.tokens, logprobs.text_offset, strict=True):
        assert choice.text[offset:].startswith(token)


def test_unknown_and_null_fields_are_ignored(client):
    answer = complete(client, extra_body={"surprise": 1, "stop": None, "seed": None, "top_p": None})
    assert answer.choices[0].text


def test_stop_token_ids_end_the_answer_and_stay_out_of_the_text(client, server):
    whole = complete(client, logprobs=0, extra_body={"ignore_eos": True}).choices[0]
    spelled = whole.logprobs.tokens
    known = [server.service.text.encode(token) for token in spelled]
    place = next(i for i in range(3, len(known)) if len(known[i]) == 1)
    first = spelled.index(spelled[place])
    stops = {"stop_token_ids": list(known[place]), "ignore_eos": True}
    answer = complete(client, extra_body=stops)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == first + 1
    text = answer.choices[0].text
    assert whole.text.startswith(text)
    assert len(text) < len(whole.text)


def test_another_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as caught:
        complete(client, model="gpt-4")
    assert caught.value.code == "model_not_found"
    assert "'echo'" in str(caught.value)


def test_an_error_about_length_names_how_much_fits(client, server):
    room = server.service.engine.context_length - len(server.service.text.encode(PROMPT))
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, max_tokens=room + 1)
    assert caught.value.code == "context_length_exceeded"
    assert f"at most {room}" in str(caught.value)


def test_prompt_over_the_context_is_refused(client, server):
    ids = [5] * server.service.engine.context_length
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, prompt=ids)
    assert caught.value.code == "context_length_exceeded"
