"""A client of `POST /internal/generate`: reads events as a router does, as many as a test needs.

It keeps what a router keeps of a call, so that another server can continue it.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from specdecode_api.internal_api import HEADER_TOKEN, PATH_ENGINE, PATH_GENERATE

TOKEN = "a-token-of-routers"


@dataclass
class Call:
    """One request of a client, and what engines have answered so far."""

    path: str
    body: dict[str, Any]
    id: str = "call1"
    seed: int = 77
    start: dict[str, Any] | None = None
    choices: dict[int, dict[str, Any]] = field(default_factory=dict)
    events: int = 0
    public: str = ""
    whole: bytes = b""
    is_ended: bool = False
    error: dict[str, Any] | None = None
    received: int = 0

    def envelope(self) -> dict[str, Any]:
        head: dict[str, Any] = {
            "path": self.path,
            "id": self.id,
            "created": 1700000000,
            "seed": self.seed,
        }
        if self.start is None:
            return head
        nothing = {"ids": [], "sent_characters": 0, "finished": None}
        resume = [self.choices.get(index, nothing) for index in range(self.start["choices"])]
        kept = {"resume_id": self.start["resume_id"], "max_tokens": self.start["max_tokens"]}
        return head | kept | {"resume": resume, "sent_events": self.events}

    def content(self, **changes: Any) -> bytes:
        head = json.dumps(self.envelope() | changes, separators=(",", ":"))
        return head.encode() + b"\n" + json.dumps(self.body).encode()

    def add(self, event: dict[str, Any]) -> None:
        self.received += 1
        if self.start is None:
            self.start = event.get("start")
        if (new := event.get("choice")) is not None:
            empty: dict[str, Any] = {"ids": [], "sent_characters": 0, "finished": None}
            known = self.choices.setdefault(new["index"], empty)
            known["ids"] = known["ids"] + new["ids"]
            known["sent_characters"] = new["sent_characters"]
            known["finished"] = new["finished"]
        self.events = event.get("events", self.events)
        self.public += event.get("public", "")
        self.is_ended = event.get("end", False)
        self.error = event.get("error")

    def copy(self) -> "Call":
        return replace(self, choices={key: dict(value) for key, value in self.choices.items()})


def headers(token: str = TOKEN, **more: str) -> dict[str, str]:
    return {HEADER_TOKEN: token, "content-type": "application/json"} | more


def post(server: Any, call: Call, **changes: Any) -> httpx.Response:
    """Send a call without reading its events one by one."""
    url = server.management_url + PATH_GENERATE
    return httpx.post(url, content=call.content(**changes), headers=headers(), timeout=60)


def run(server: Any, call: Call, most_events: int | None = None) -> Call:
    """Have a server begin or continue a call, and disconnect after some events."""
    url = server.management_url + PATH_GENERATE
    left = -1 if most_events is None else most_events
    with httpx.stream(
        "POST", url, content=call.content(), headers=headers(), timeout=60
    ) as response:
        assert response.status_code == 200, response.read()
        if left == 0:
            return call
        body = response.iter_bytes()
        for event in _events(body, call):
            call.add(event)
            left -= 1
            if left == 0 or call.is_ended:
                break
        if call.is_ended and call.start is not None and not call.start["is_stream"]:
            call.whole += b"".join(body)
    return call


def _events(body: Iterator[bytes], call: Call) -> Iterator[dict[str, Any]]:
    buffer = b""
    for data in body:
        buffer += data
        while b"\n\n" in buffer:
            event, _, buffer = buffer.partition(b"\n\n")
            if event.startswith(b":"):
                continue
            parsed = json.loads(event.removeprefix(b"data: "))
            if parsed.get("end") and not parsed.get("public"):
                call.whole, buffer = buffer, b""
            yield parsed


def engine_state(server: Any) -> dict[str, Any]:
    response = httpx.get(server.management_url + PATH_ENGINE, headers=headers(), timeout=10)
    return dict(response.raise_for_status().json())
