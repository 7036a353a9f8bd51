"""A conversation over HTTP: messages so far, and the pieces of the next answer as they arrive."""

import json
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2

from specdecode_engine.cli.api_key_flags import VARIABLE

CONNECT_S = 10.0
"""An answer may take any time: only connecting has a limit."""
SHOWN_CHARS = 300
_DATA, _END = "data: ", "[DONE]"


class ChatError(Exception):
    """An answer failed, or the server cannot be used; the message has the remedy."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer as it arrived."""

    text: str
    is_reasoning: bool = False


@dataclass(slots=True)
class AnswerStats:
    """Tokens of an answer so far, and when they came."""

    started_s: float
    tokens: int = 0
    first_token_s: float | None = None
    last_token_s: float = 0.0
    accept_length: float | None = None  # once the answer has ended

    def note(self, event: Mapping[str, Any], now_s: float) -> None:
        """Count the tokens of an event of a stream."""
        if (new := event.get("speculation")) and new["tokens"]:
            self.tokens += new["tokens"]
            self.last_token_s = now_s
            if self.first_token_s is None:
                self.first_token_s = now_s
        if usage := event.get("usage"):
            self.tokens = usage["completion_tokens"]
            self.accept_length = (usage.get("specdecode") or {}).get("accept_length")

    def line(self) -> str:
        """Return what a status line shows: `tokens_per_second = (tokens - 1) / seconds`."""
        parts = [f"{self.tokens} tokens"]
        if self.first_token_s is not None and self.last_token_s > self.first_token_s:
            seconds = self.last_token_s - self.first_token_s
            parts.append(f"{(self.tokens - 1) / seconds:.1f} tokens/s")
            parts.append(f"first after {1000 * (self.first_token_s - self.started_s):.0f} ms")
        if self.accept_length is not None:
            parts.append(f"accept length {self.accept_length:.2f}")
        return ", ".join(parts)


@dataclass(slots=True)
class Conversation:
    """Messages of one conversation with a model.

    Args:
        client: its base URL is that of the API, with `/v1`.
        options: fields of the body besides messages and stream.
    """

    client: httpx2.Client
    model: str
    options: Mapping[str, Any]
    messages: list[dict[str, str]] = field(default_factory=list)

    def ask(self, text: str) -> Generator[Piece | AnswerStats, None, None]:
        """Send a message; yield the pieces of the answer, then its statistics.

        If the iteration is given up, the server stops as well, and what arrived stays in the
        conversation.

        Raises:
            ChatError: the message is then not part of the conversation.
        """
        self.messages.append({"role": "user", "content": text})
        stats, content = AnswerStats(time.monotonic()), list[str]()
        try:
            for event in self._events():
                stats.note(event, time.monotonic())
                for piece in _pieces(event):
                    if not piece.is_reasoning:
                        content.append(piece.text)
                    yield piece
        except ChatError:
            self.messages.pop()
            raise
        except (GeneratorExit, KeyboardInterrupt):
            self._keep(content)
            raise
        self._keep(content)
        yield stats

    def _keep(self, content: list[str]) -> None:
        self.messages.append({"role": "assistant", "content": "".join(content)})

    def _events(self) -> Iterator[dict[str, Any]]:
        body = {
            "model": self.model,
            "messages": self.messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_speculation": True,
            **self.options,
        }
        try:
            with self.client.stream("POST", "chat/completions", json=body) as response:
                if response.status_code != httpx2.codes.OK:
                    response.read()
                    raise ChatError(error_of(response))
                yield from _read(response)
        except httpx2.HTTPError as error:
            raise ChatError(f"the answer was cut off: {error or type(error).__name__}") from None


def connect(url: str, key: str | None) -> tuple[httpx2.Client, str]:
    """Return a client of the API at a URL, with or without `/v1`, and the model that it serves.

    Raises:
        ChatError: nothing answers there, or not with a list of models.
    """
    base = url.rstrip("/").removesuffix("/v1") + "/v1/"
    headers = {"authorization": f"Bearer {key}"} if key else {}
    timeout = httpx2.Timeout(None, connect=CONNECT_S)
    client = httpx2.Client(base_url=base, headers=headers, timeout=timeout, trust_env=False)
    try:
        response = client.get("models", timeout=CONNECT_S)
        if response.status_code != httpx2.codes.OK:
            raise ChatError(error_of(response))
        return client, str(response.json()["data"][0]["id"])
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        reason = f"{error or type(error).__name__}"
        remedy = "start a server with: specdecode-engine serve MODEL, or name the model here"
        raise ChatError(f"nothing answers at {url}: {reason}; {remedy}") from None
    except (ValueError, LookupError, TypeError):
        raise ChatError(f"{base}models is not a list of models; check the URL") from None


def error_of(response: httpx2.Response) -> str:
    """Return what a refusal states, with the remedy for a missing key."""
    try:
        message = str(response.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        message = response.text
    remedy = f"; set {VARIABLE}" if response.status_code == httpx2.codes.UNAUTHORIZED else ""
    return f"status {response.status_code}: {message[:SHOWN_CHARS]}{remedy}"


def _read(response: httpx2.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if not line.startswith(_DATA):
            continue
        data = line.removeprefix(_DATA)
        if data == _END:
            return
        event: dict[str, Any] = json.loads(data)
        if (error := event.get("error")) is not None:
            raise ChatError(f"the answer failed: {str(error.get('message'))[:SHOWN_CHARS]}")
        yield event
    raise ChatError("the answer was cut off; send the message again")


def _pieces(event: Mapping[str, Any]) -> Iterator[Piece]:
    for choice in event.get("choices", ()):
        delta = choice.get("delta") or {}
        if reasoning := delta.get("reasoning_content"):
            yield Piece(reasoning, is_reasoning=True)
        if content := delta.get("content"):
            yield Piece(content)
