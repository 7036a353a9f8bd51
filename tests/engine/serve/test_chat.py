"""POST /v1/chat/completions over real HTTP with the official client."""

import json
import socket

import openai
import pytest

MESSAGES = [{"role": "user", "content": "the quick brown fox"}]


@pytest.fixture
def client(server):
    return server.client


def chat(client, **fields):
    options = {"model": "echo", "messages": MESSAGES, "temperature": 0, "max_tokens": 24}
    return client.chat.completions.create(**(options | fields))


def test_answers_as_the_assistant(client):
    answer = chat(client)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.completion_tokens <= 24


def test_stream_opens_with_the_role_and_joins_to_the_same_text(client):
    whole = chat(client)
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage


def first_chunk(server, path, body):
    """Return the first HTTP chunk of a response."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with socket.create_connection(server.address, timeout=20) as sock, sock.makefile("rb") as file:
        sock.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        while file.readline().strip():
            pass
        return file.read(int(file.readline(), 16))


def test_the_role_comes_with_the_first_token_and_a_created_response_at_once(server):
    """Clients measure the time to the first token by the first event of chat."""
    shared = {"model": "echo", "stream": True, "temperature": 0}
    chat_body = shared | {"messages": MESSAGES, "max_tokens": 24, "ignore_eos": True}
    opening = first_chunk(server, "/v1/chat/completions", chat_body)
    deltas = [
        json.loads(line[6:])["choices"][0]["delta"]
        for line in opening.splitlines()
        if line.startswith(b"data: ")
    ]
    assert deltas[0]["role"] == "assistant"
    assert len(deltas) == 2
    assert deltas[1]["content"]
    opening = first_chunk(server, "/v1/responses", shared | {"input": "the quick brown fox"})
    assert b"response.created" in opening
    assert b"response.output_text.delta" not in opening


def test_parts_of_text_are_joined(client, server):
    parts = [{"type": "text", "text": "the quick"}, {"type": "text", "text": "brown fox"}]
    joined = [{"role": "user", "content": "the quick\nbrown fox"}]
    answers = [
        chat(client, messages=messages)
        for messages in ([{"role": "user", "content": parts}], joined)
    ]
    assert answers[0].choices[0].message == answers[1].choices[0].message
    assert answers[0].usage == answers[1].usage


def test_default_length_is_the_rest_of_the_context(client, server):
    answer = chat(client, max_tokens=None, extra_body={"ignore_eos": True})
    assert answer.usage.total_tokens == server.service.engine.context_length
    assert answer.choices[0].finish_reason == "length"


def test_max_completion_tokens_wins_over_max_tokens(client):
    answer = chat(client, max_completion_tokens=5, max_tokens=9, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 5


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_spell_the_text_in_bytes(client, stream):
    answer = chat(client, logprobs=True, top_logprobs=3, stream=stream)
    if stream:
        chunks = list(answer)
        text = "".join(c.choices[0].delta.content or "" for c in chunks)
        tokens = [t for c in chunks if c.choices[0].logprobs for t in c.choices[0].logprobs.content]
    else:
        text = answer.choices[0].message.content
        tokens = answer.choices[0].logprobs.content
    spelled = b"".join(bytes(token.bytes or ()) for token in tokens)
    assert spelled.decode(errors="replace") == text
    assert all(len(token.top_logprobs) == 3 for token in tokens)


def test_what_the_template_refuses_is_the_clients_fault(start_server):
    client = start_server().client
    with pytest.raises(openai.BadRequestError, match="no tools here"):
        chat(client, messages=[{"role": "tool", "content": "x", "tool_call_id": "1"}])


def test_a_model_without_template_cannot_chat_but_complete(start_server, write_model, tmp_path):
    client = start_server(folder=write_model(tmp_path / "plain", chat_template=None)).client
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client)
    assert caught.value.code == "no_chat_template"
    assert client.completions.create(model="echo", prompt="the fox").choices[0].text


def test_tools_without_a_known_format_are_refused(start_server):
    tools = [{"type": "function", "function": {"name": "f"}}]
    with pytest.raises(openai.BadRequestError, match=r"set serving\.toolParser"):
        chat(start_server().client, tools=tools)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"top_logprobs": 2}, "top_logprobs: it needs logprobs"),
        ({"messages": []}, "messages is []"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "type text"),
    ],
)
def test_what_is_not_available_is_refused_by_name(client, fields, words):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, **fields)
    assert words in str(caught.value)
