"""What a call is answered with: one object, or the events of a stream."""

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from json.encoder import encode_basestring
from typing import Any, Protocol

from specdecode_engine.serve.openai.json_text import to_json
from specdecode_engine.serve.openai.output_processor import OutputProcessor

END_OF_STREAM = "[DONE]"
"""The data of the last event of a stream of chunks."""

Event = dict[str, Any]
"""The JSON object of one server-sent event."""

_TEXT = secrets.token_hex(16)
"""Stands for the text in a prepared event; drawn at start, so that no other value contains it."""


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """What every object of a response contains; `created` is a Unix time in seconds."""

    request_id: str
    created: int
    model: str
    prompt_tokens: int = 0


class ResponseFormatter(Protocol):
    """The objects that one API answers a call with; one formatter for each call.

    `has_named_events` names each event by the field `type` of its object; `end_marker` is the data
    of a last event after them. `opens_at_once` sends the first events before the request has left
    the queue, else they come with the first output.
    """

    has_named_events: bool
    opens_at_once: bool
    end_marker: str | None

    @property
    def num_events(self) -> int:
        """Events so far, where events are numbered; else 0."""

    def resume(self, choices: Sequence[OutputProcessor], num_events: int) -> None:
        """Continue a stream after `num_events` events, which contained all of the choices."""

    def whole(self, choices: Sequence[OutputProcessor], usage: dict[str, Any]) -> Event:
        """Return the response in one piece."""

    def first_events(self) -> Iterable[Event]:
        """Return the events that open a stream before any output."""

    def text_event(self, choice: OutputProcessor) -> bytes:
        """Return the event for a choice to which only text was added, as `encode_event` returns it.

        It is empty where something else was added as well: `events` returns that.
        """

    def events(self, choice: OutputProcessor) -> Iterable[Event]:
        """Return the events for what was added to a choice."""

    def last_events(self, usage: dict[str, Any]) -> Iterable[Event]:
        """Return the events that end a stream after every choice has ended."""

    def error_event(self, body: dict[str, Any]) -> Event:
        """Return the event that ends a stream that failed; `body` is that of `HttpError`."""


class ChoiceFormatter(ABC):
    """Responses with a list of choices: those of chat and of text completions."""

    has_named_events: bool = False
    # As in vLLM and SGLang: clients take the first event for the first token.
    opens_at_once: bool = False
    end_marker: str | None = END_OF_STREAM
    num_events: int = 0
    id_prefix: str
    object_type: str
    chunk_type: str

    def __init__(
        self, head: ResponseHead, num_choices: int, include_usage: bool, has_logprobs: bool
    ) -> None:
        self._head = head
        self._num_choices = num_choices
        self._include_usage = include_usage
        self._has_logprobs = has_logprobs
        self._frames: dict[int, tuple[bytes, bytes]] = {}
        self._with_prompt: set[int] = set()  # choices whose prompt's ids were sent

    @abstractmethod
    def first_choice(self, index: int) -> dict[str, Any] | None:
        """Return the choice that opens a stream before any text; None where there is none."""

    @abstractmethod
    def text_choice(self, index: int, text: str) -> dict[str, Any]:
        """Return the choice of a chunk that has only text, without log-probabilities."""

    @abstractmethod
    def choice(self, whole: OutputProcessor) -> dict[str, Any]:
        """Return a choice of a response in one piece."""

    @abstractmethod
    def chunk_choices(self, new: OutputProcessor) -> list[dict[str, Any]]:
        """Return the choice of each chunk for what was added since the last ones."""

    def resume(self, choices: Sequence[OutputProcessor], num_events: int) -> None:
        del num_events  # chunks do not depend on those before them, but for the prompt's ids
        self._with_prompt = {
            each.index for each in choices if each.completion_tokens or each.has_echo
        }

    def whole(self, choices: Sequence[OutputProcessor], usage: dict[str, Any]) -> Event:
        objects = [self.choice(choice) for choice in choices]
        return self._object(self.object_type) | {"choices": objects, "usage": usage}

    def first_events(self) -> Iterable[Event]:
        firsts = map(self.first_choice, range(self._num_choices))
        return [self._chunk(first) for first in firsts if first is not None]

    def text_event(self, choice: OutputProcessor) -> bytes:
        if self._has_logprobs or not (text := choice.only_text):
            return b""
        frame = self._frames.get(choice.index)
        if frame is None:
            frame = self._frames[choice.index] = self._frame(choice.index)
        before, after = frame
        return before + encode_basestring(text).encode() + after

    def _frame(self, index: int) -> tuple[bytes, bytes]:
        """Return what is before and after the text in every text event of a choice."""
        event = encode_event(self._chunk(self.text_choice(index, _TEXT)))
        before, after = event.split(f'"{_TEXT}"'.encode())
        return before, after

    def events(self, choice: OutputProcessor) -> Iterable[Event]:
        return [self._chunk(each) for each in self.chunk_choices(choice)]

    def last_events(self, usage: dict[str, Any]) -> Iterable[Event]:
        if not self._include_usage:
            return []
        return [self._object(self.chunk_type) | {"choices": [], "usage": usage}]

    def error_event(self, body: dict[str, Any]) -> Event:
        return body

    def _shows_prompt(self, choice: OutputProcessor, *, is_once: bool = False) -> bool:
        """Whether this event is the first to show the ids of a choice's prompt, if any is.

        Args:
            is_once: one event shows them for all choices.
        """
        is_shown = bool(self._with_prompt) if is_once else choice.index in self._with_prompt
        if is_shown or choice.returned_ids is None:
            return False
        self._with_prompt.add(choice.index)
        return True

    def _chunk(self, choice: dict[str, Any]) -> Event:
        usage = {"usage": None} if self._include_usage else {}
        return self._object(self.chunk_type) | usage | {"choices": [choice]}

    def _object(self, object_type: str) -> Event:
        head = self._head
        return {
            "id": f"{self.id_prefix}-{head.request_id}",
            "object": object_type,
            "created": head.created,
            "model": head.model,
        }


def encode_event(event: Event, *, is_named: bool = False, in_pieces: bool = False) -> bytes:
    """Return a server-sent event; `is_named` names it by its field `type`.

    `in_pieces` is as in `to_json`.
    """
    name = f"event: {event['type']}\n" if is_named else ""
    return b"%sdata: %s\n\n" % (name.encode(), to_json(event, in_pieces=in_pieces))


def usage_of(
    prompt_tokens: int, choices: Sequence[OutputProcessor], cached_tokens: int | None = None
) -> dict[str, object]:
    """Return OpenAI's usage, with the figures of speculation in `specdecode`.

    The names are those of vLLM's metrics. `accept_length` is generated tokens per sequence and
    decode step, the target's own included; None without a decode step. The first token comes
    from prefill. `cached_tokens` of the prompt tokens were in the prefix cache; None leaves that
    out.
    """
    steps = sum(choice.decode_steps for choice in choices)
    drafted = sum(choice.drafted for choice in choices)
    by_position = zip_longest(*(choice.accepted_at for choice in choices), fillvalue=0)
    accepted_at = [sum(position) for position in by_position]
    accepted = sum(accepted_at)
    emitted = sum(choice.emitted for choice in choices)
    completion_tokens = sum(choice.completion_tokens for choice in choices)
    cached = (
        {} if cached_tokens is None else {"prompt_tokens_details": {"cached_tokens": cached_tokens}}
    )
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        **cached,
        "completion_tokens_details": {
            "reasoning_tokens": sum(choice.reasoning_tokens for choice in choices),
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        },
        "specdecode": {
            "decode_steps": steps,
            "num_drafts": sum(choice.drafts for choice in choices),
            "num_draft_tokens": drafted,
            "num_accepted_tokens": accepted,
            "num_accepted_tokens_per_pos": accepted_at,
            "accept_length": emitted / steps if steps else None,
        },
    }
