"""A conversation over HTTP: messages so far, and the pieces of the next answer as they arrive."""

import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from specdecode_api.terminal_chat.api_client import ApiClient, ChatError


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
        options: fields of the body besides messages and stream.
    """

    client: ApiClient
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
            for event in self.client.events("chat/completions", self._body()):
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

    def _body(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "messages": self.messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_speculation": True,
            **self.options,
        }


def _pieces(event: Mapping[str, Any]) -> Iterator[Piece]:
    for choice in event.get("choices", ()):
        delta = choice.get("delta") or {}
        if reasoning := delta.get("reasoning_content"):
            yield Piece(reasoning, is_reasoning=True)
        if content := delta.get("content"):
            yield Piece(content)
