"""A stream that is silent for long gets comments, which clients ignore."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from specdecode_server import middleware
from specdecode_server.middleware import KEEP_ALIVE, StreamKeepAlive
from tests.engine.serve.conftest import RunningServer

BODY: dict[str, Any] = {"model": "echo", "prompt": "the quick brown fox", "max_tokens": 4}
START: Message = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8")],
}
LAST: Message = {"type": "http.response.body", "body": b"data: [DONE]\n\n"}


@pytest.fixture
def slow(
    start_server: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> RunningServer:
    monkeypatch.setattr(middleware, "KEEP_ALIVE_SECONDS", 0.05)
    return start_server(step_seconds=0.4, tokens_per_step=2)


@pytest.mark.parametrize("path", ["completions", "chat/completions", "responses"])
def test_a_silent_stream_gets_comments_between_its_events(slow: RunningServer, path: str) -> None:
    body: dict[str, Any] = {"stream": True, "max_tokens": 4}
    if path == "responses":
        body = {"stream": True, "max_output_tokens": 4, "input": "the quick"}
    elif path == "chat/completions":
        body |= {"messages": [{"role": "user", "content": "the quick"}]}
    else:
        body |= {"prompt": "the quick"}
    raw = slow.post(f"/v1/{path}", json=body).content
    *events, rest = raw.split(b"\n\n")
    assert events.count(KEEP_ALIVE.strip()) > 2
    assert events[-1] != KEEP_ALIVE.strip(), "nothing follows the end"
    assert not rest
    assert all(each.startswith((b"data: ", b"event: ", b": keep-alive")) for each in events)


def test_the_official_client_reads_the_same_text_with_comments(slow: RunningServer) -> None:
    create = slow.connect(is_strict=False).completions.create
    whole = create(**BODY)
    chunks = [*create(**BODY, stream=True, stream_options={"include_usage": True})]
    text = "".join(each.choices[0].text for each in chunks if each.choices)
    assert text == whole.choices[0].text
    assert chunks[-1].usage == whole.usage


def test_a_response_in_one_piece_has_no_comments(slow: RunningServer) -> None:
    assert httpx.post(f"{slow.url}/v1/completions", json=BODY, timeout=10).json()["usage"]


async def receive() -> Message:
    raise AssertionError("nothing is received")


def test_a_client_that_reads_slowly_gets_no_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else they would pile up while the server waits for the client."""
    monkeypatch.setattr(middleware, "KEEP_ALIVE_SECONDS", 0.01)
    sent = list[Message]()
    is_waiting, has_read = asyncio.Event(), asyncio.Event()

    async def send(message: Message) -> None:
        if message.get("more_body") and message["body"] != KEEP_ALIVE:
            is_waiting.set()
            await has_read.wait()
        sent.append(message)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        await send(LAST)

    async def run() -> None:
        responding = asyncio.create_task(StreamKeepAlive(app)({"type": "http"}, receive, send))
        await is_waiting.wait()
        await asyncio.sleep(0.05)
        assert sent == [START]
        has_read.set()
        await responding
        await asyncio.sleep(0.05)

    asyncio.run(run())
    assert [each.get("body") for each in sent] == [None, b"data: 1\n\n", LAST["body"]]
