"""The endpoints of an engine's management port that a router uses, with a shared token.

`POST /internal/generate`: the body is an `Envelope` on one line, then the client's body exactly as
it was sent. The client's headers are the request's headers. A refusal has its own status; else the
response is a stream of events, each the JSON object of one of the classes below. After the `end` of
a call that is answered in one piece, the rest of the response is its body.
"""

from typing import Annotated, Final, Literal, NotRequired, TypedDict

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

PATH_GENERATE: Final = "/internal/generate"
PATH_ENGINE: Final = "/internal/engine"
QUERY_RESPONSE_KEY: Final = "response_key"
HEADER_TOKEN: Final = "X-Specdecode-Router-Token"
INTERNAL_HEADER_PREFIX: Final = "x-specdecode-router-"
"""Headers with this prefix come from a router only, which removes them from what clients send."""

HEARTBEAT: Final = b": waiting\n\n"
"""A comment in the stream of a call that waits for its first tokens."""
HEARTBEAT_SECONDS: Final = 1.0

RESUME_ID_DIFFERS: Final = "resume_id_differs"
RESUME_MISMATCH: Final = "resume_mismatch"
"""Codes of refusals of a resume: by another engine, or with other text than was sent."""

GenerationPath = Literal["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"]
FinishText = Literal["stop", "length", "abort", "error"]
_Count = Annotated[int, Field(ge=0, lt=2**31)]


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class ResumedChoice(_Record):
    """A choice so far: its tokens, and the characters of it that were sent to the client."""

    ids: tuple[_Count, ...]
    sent_characters: _Count
    finished: FinishText | None = None


class Envelope(_Record):
    """What a router adds to a client's request.

    `resume` continues a call that an engine with the same `resume_id` began: `max_tokens` and
    `sent_events` are those of its latest events.
    """

    path: GenerationPath
    id: Annotated[str, StringConstraints(pattern="^[0-9A-Za-z_-]{1,64}$")]
    created: Annotated[int, Field(ge=0, lt=2**53)]
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    resume: tuple[ResumedChoice, ...] = ()
    resume_id: str | None = None
    max_tokens: tuple[_Count, ...] = ()
    sent_events: _Count = 0


class StartEvent(TypedDict):
    """The engine has accepted the call.

    `max_tokens` are allowed after each prompt. `is_stream` is whether the client gets a stream. A
    response in one piece that `is_resumable` is not must be generated again from its beginning.
    """

    resume_id: str | None
    max_tokens: list[int]
    choices: int
    is_stream: bool
    is_resumable: bool


class ChoiceEvent(TypedDict):
    """New tokens of a choice, and all characters of it that were sent."""

    index: int
    ids: list[int]
    sent_characters: int
    finished: FinishText | None


class StreamEvent(TypedDict):
    """One event; `public` is what the client gets, and `events` counts its events if numbered."""

    start: NotRequired[StartEvent]
    choice: NotRequired[ChoiceEvent]
    events: NotRequired[int]
    public: NotRequired[str]
    end: NotRequired[bool]
    error: NotRequired[dict[str, object]]


class EngineState(_Record):
    """The response of `GET /internal/engine`.

    `requests` run and wait; more than `capacity` wait. `resume_id` is null until it is computed.
    `response_key`, in hexadecimal, recognizes the names of responses that the engine stores; it is
    left out unless the query has its name, because routers of the release before refuse it.
    """

    reason: str | None
    resume_id: str | None
    model: str
    config_hash: str
    api_port: int
    requests: _Count
    capacity: _Count
    max_body_bytes: _Count
    response_key: Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")] | None = None
