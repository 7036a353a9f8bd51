"""One call of a client as far as engines have answered it, and what follows when one is lost."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from specdecode_api.internal_api import (
    ChoiceEvent,
    Envelope,
    FinishText,
    GenerationPath,
    ResumedChoice,
    StartEvent,
    StreamEvent,
)
from specdecode_server.error_forms import is_messages, messages_error


class BreakReason(StrEnum):
    """Why an engine did not end its answer."""

    UNREACHABLE = "unreachable"  # no connection: the request was not sent
    LOST = "lost"  # the connection broke
    STALLED = "stalled"  # no event for too long
    DRAINING = "draining"  # the pod stopped before the answer was complete
    FAILED = "failed"  # the engine reported an error
    REFUSED = "refused"  # it does not continue the answer of another engine


class UnresumableReason(StrEnum):
    """Why a stream ended with an error; label of a metric."""

    RETRIES = "retries"  # broken more often than `retries` without a new token
    RESUME_ID = "resume_id"  # every engine would continue with other text
    UNKNOWN_ID = "unknown_id"  # it began before its engine had computed its resume_id
    REFUSED = "refused"  # an engine refused to continue
    DEADLINE = "deadline"  # no engine became ready in time


@dataclass(slots=True)
class ChoiceProgress:
    """The tokens of a choice, and what the client got of it."""

    ids: list[int] = field(default_factory=list)
    sent_characters: int = 0
    finished: FinishText | None = None


class Call:
    """What the router knows of a call.

    `resume_id` and `max_tokens` are those of the engine that began it; `breaks` counts how often
    an engine was lost since the latest new token.

    Args:
        path: of the API.
        request_id: the id of the response, which every engine uses once anything is sent.
        created: Unix time in seconds.
        seed: for a body without one.
        named: the stored response that the call continues or refers to.
    """

    def __init__(
        self,
        path: GenerationPath,
        request_id: str,
        created: int,
        seed: int,
        named: str | None = None,
    ) -> None:
        self.path = path
        self.request_id = request_id
        self.named = named
        self.created = created
        self.seed = seed
        self.is_stream = False
        self.is_ended = False
        self.breaks = 0
        self.sent_events = 0
        self.resume_id: str | None = None
        self._max_tokens: list[int] = []
        self._choices: list[ChoiceProgress] = []
        self._is_resumable = True

    @property
    def has_started(self) -> bool:
        """Whether an engine has accepted the call, and its answer is not to be generated again."""
        return bool(self._choices)

    @property
    def has_sent(self) -> bool:
        """Whether the client has got anything of the answer."""
        return self.is_stream and self.has_started

    @property
    def can_start_over(self) -> bool:
        """Whether any engine may generate the answer from its beginning: nothing was sent."""
        return not self.is_stream

    @property
    def num_tokens(self) -> int:
        """Tokens of all choices."""
        return sum(len(choice.ids) for choice in self._choices)

    def begin(self, start: StartEvent) -> None:
        """Note that an engine has accepted the call; the first one determines how it continues."""
        if self.has_started:
            return
        self.resume_id = start["resume_id"]
        self.is_stream = start["is_stream"]
        self._is_resumable = start["is_resumable"]
        self._max_tokens = start["max_tokens"]
        self._choices = [ChoiceProgress() for _ in range(start["choices"])]

    def add(self, event: StreamEvent) -> None:
        """Add an event, of which the client gets the part `public`."""
        if (new := event.get("choice")) is not None:
            self._add_tokens(new)
        self.sent_events = event.get("events", self.sent_events)

    def _add_tokens(self, new: ChoiceEvent) -> None:
        choice = self._choices[new["index"]]
        choice.ids += new["ids"]
        choice.sent_characters = new["sent_characters"]
        choice.finished = new["finished"]
        if new["ids"]:
            self.breaks = 0

    def start_over(self) -> None:
        """Forget what was generated."""
        self._choices, self._max_tokens, self.resume_id = [], [], None
        self.sent_events = 0

    def envelope(self) -> Envelope:
        """Return what the next engine gets."""
        resumed = tuple(
            ResumedChoice(
                ids=tuple(each.ids), sent_characters=each.sent_characters, finished=each.finished
            )
            for each in self._choices
        )
        return Envelope(
            path=self.path,
            id=self.request_id,
            created=self.created,
            seed=self.seed,
            resume=resumed,
            resume_id=self.resume_id,
            max_tokens=tuple(self._max_tokens),
            sent_events=self.sent_events,
        )

    @property
    def must_start_over(self) -> bool:
        """Whether the rest of a response in one piece does not follow from its tokens."""
        has_failed = any(choice.finished == "error" for choice in self._choices)
        return self.has_started and not self.is_stream and (has_failed or not self._is_resumable)


def error_event(path: str, number: int, error: dict[str, Any]) -> bytes:
    """Return the event that ends a client's stream with an error, as the engine would write it.

    Args:
        number: of the event, in the API whose events are numbered.
        error: OpenAI's error object.
    """
    if is_messages(path):
        event = messages_error(error)
    elif path == "/v1/responses":
        fields = {name: error.get(name) for name in ("code", "message", "param")}
        event = {"type": "error", **fields, "sequence_number": number}
    else:
        return b"data: %s\n\n" % json.dumps({"error": error}, separators=(",", ":")).encode()
    return b"event: error\ndata: %s\n\n" % json.dumps(event, separators=(",", ":")).encode()


def unresumable_reason(
    call: Call, retries: int, known_ids: Sequence[str | None]
) -> UnresumableReason | None:
    """Return why a call that has begun cannot continue; None if an engine may.

    Args:
        retries: how often a call may break without a new token in between.
        known_ids: `resume_id` of every engine, ready or not; None where it is not known.
    """
    if call.breaks > retries:
        return UnresumableReason.RETRIES
    if not call.has_sent:
        return None
    if call.resume_id is None:
        return UnresumableReason.UNKNOWN_ID
    if call.resume_id not in known_ids and None not in known_ids:
        return UnresumableReason.RESUME_ID
    return None
