"""Requests about stored responses: create, continue, read, delete, and ids that make no sense.

A drawn request contains `SOME_NAME` in place of the name of a stored response. `KnownNames` puts a
name there that the engine has sent, so that requests continue and delete what others created; a
request that is sent again by its index alone gets a 404.
"""

import random
import re
from collections import deque
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from checks.fuzz.fields import MODEL, STRINGS, anything, text
from checks.fuzz.mutations import encode, mutate
from checks.fuzz.wire import WireRequest

SOME_NAME = "5" * 48
PATH = "/v1/responses"
KEPT_NAMES = 64
_NAME = re.compile(rb'"id": ?"resp_([0-9a-f]{48})"')
_PREFIXES = ("msg", "rs", "fc", "ctc", "fco", "resp", "x")
_QUERIES = (
    "", "", "?limit=2", "?limit=100&order=asc", "?limit=0", "?limit=1e9", "?limit=%ff", "?order=x",
    f"?after=msg_{SOME_NAME}_i0", "?after=%00", "?after=" + "a" * 3000, "?stream=true", "?stream=x",
    "?starting_after=1", "?include[]=message.output_text.logprobs", "?include=x&include=y", "?=&&&",
)  # fmt: skip


class KnownNames:
    """Names of responses that the engine has sent, the latest ones."""

    def __init__(self) -> None:
        self._names: deque[bytes] = deque(maxlen=KEPT_NAMES)

    def note(self, data: bytes) -> None:
        """Keep the first name in the bytes of a reply."""
        if found := _NAME.search(data):
            self._names.append(found[1])

    def fill(self, request: WireRequest, rng: random.Random) -> WireRequest:
        """Return a request with a known name in place of `SOME_NAME`."""
        if not self._names:
            return request
        old, new = SOME_NAME.encode(), rng.choice(self._names)
        return replace(
            request, head=request.head.replace(old, new), body=request.body.replace(old, new)
        )


def draw_stored(rng: random.Random) -> tuple[str, str, bytes]:
    """Return method, path and body of a request about stored responses."""
    if rng.random() < 0.6:
        body: Any = _body(rng)
        if rng.random() < 0.3:
            body = mutate(rng, body)
        return "POST", PATH, encode(rng, body)
    path = f"{PATH}/{quote(_response_id(rng), safe='%', errors='surrogatepass')}"
    method = rng.choice(("GET", "GET", "DELETE", "HEAD", "POST", "PUT"))
    part = rng.choice(("", "", "/input_items", "/input_items", "/cancel", "/x"))
    return method, f"{path}{part}{rng.choice(_QUERIES)}", b""


def _body(rng: random.Random) -> dict[str, Any]:
    body: dict[str, Any] = {"model": MODEL, "max_output_tokens": rng.choice((1, 4, 16))}
    body["input"] = text(rng) if rng.random() < 0.5 else [_item(rng) for _ in range(3)]
    if rng.random() < 0.6:
        body["previous_response_id"] = _response_id(rng)
    if rng.random() < 0.4:
        body["store"] = rng.choice((True, False, None, "x"))
    body["stream"] = rng.random() < 0.4
    return body


def _item(rng: random.Random) -> Any:
    if rng.random() < 0.4:
        return {"role": rng.choice(("user", "assistant", "developer")), "content": text(rng)}
    number = rng.choice(("0", "1", "i0", "i1", "i99999999999", "-1"))
    item_id: Any = f"{rng.choice(_PREFIXES)}_{SOME_NAME}_{number}"
    if rng.random() < 0.2:
        item_id = rng.choice((anything(rng), f"resp_{SOME_NAME}"))
    return {"type": "item_reference", "id": item_id} if rng.random() < 0.7 else {"id": item_id}


def _response_id(rng: random.Random) -> str:
    if rng.random() < 0.8:
        return f"resp_{SOME_NAME}"
    wrong = ("resp_", "x", f"msg_{SOME_NAME}_0", f"resp_{SOME_NAME}0", "resp_" + "0" * 48, "..")
    return rng.choice((*wrong, *STRINGS[:8]))[:400] or "x"
