"""Draws request number `index` of a seed; the same two numbers give the same bytes."""

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from checks.fuzz.fields import (
    MODEL,
    STRINGS,
    anything,
    message_body,
    messages,
    text,
    token_ids,
    tools,
    valid_body,
)
from checks.fuzz.hostile import hostile_constraint
from checks.fuzz.mutations import damage, encode, mutate
from checks.fuzz.stored import draw_stored
from checks.fuzz.wire import Delivery, WireRequest

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = ("/v1/messages", "/v1/messages?beta=true", "/v1/messages/count_tokens")
DEEP_RECURSION = 100_000
HUGE_BYTES = (1, 4, 9, 32)  # MiB
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "X" * 40)
PATHS = (
    "/", "/health", "/ping", "/version", "/v1/models", "/openapi.json", "/docs", "/metrics",
    "/v1/models/target", "/v1/models/../../etc/passwd", "//v1//completions", "/v1/completions/",
    "/%00", "/" + "a" * 9000, "/v1/completions?" + "x=1&" * 999, "*", "http://evil/v1/completions",
    "/v1/embeddings", "/v1/chat/completions/x", "/drain", "/speculation/table",
)  # fmt: skip
CONTENT_TYPES = (
    "application/json", "application/json; charset=latin-1", "text/plain", "", "multipart/mixed",
    "application/x-www-form-urlencoded", "application/json" * 500, "\xff",
)  # fmt: skip

Weights = dict[Callable[[random.Random], WireRequest], int]


@dataclass(frozen=True, slots=True)
class Case:
    """A drawn request and the name of its kind."""

    kind: str
    request: WireRequest


def draw_case(seed: int, index: int, weights: Weights | None = None) -> Case:
    """Return request `index` of a seed; `weights` are those of the kinds, `FUZZ_KINDS` if None."""
    rng = random.Random(f"{seed}/{index}")
    chosen = FUZZ_KINDS if weights is None else weights
    make = rng.choices(tuple(chosen), tuple(chosen.values()))[0]
    with deep_recursion():
        return Case(make.__name__.strip("_"), make(rng))


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Allow bodies that nest thousands of levels deep to be copied and written, and nothing else.

    A document that another part of the process parses must not overflow the stack.
    """
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(DEEP_RECURSION)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def _head(
    method: str, path: str, content_type: str = "application/json", extra: bytes = b""
) -> bytes:
    line = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: {content_type}\r\n"
    return line.encode("latin-1") + extra + b"connection: close\r\n"


def _api(rng: random.Random) -> str:
    return rng.choice((CHAT, COMPLETIONS))


def _delivery(rng: random.Random) -> Delivery:
    if rng.random() < 0.7:
        return Delivery.WHOLE
    return rng.choice((Delivery.CHUNKED, Delivery.LEAVE, Delivery.LEAVE, Delivery.HALF_CLOSED))


def _valid(rng: random.Random) -> WireRequest:
    path = _api(rng)
    return WireRequest(_head("POST", path), encode(rng, valid_body(rng, path)), _delivery(rng))


def _mutated(rng: random.Random) -> WireRequest:
    path = _api(rng)
    body = mutate(rng, valid_body(rng, path))
    return WireRequest(_head("POST", path), encode(rng, body), _delivery(rng))


def _constrained(rng: random.Random) -> WireRequest:
    path = _api(rng)
    body = valid_body(rng, path) | hostile_constraint(rng)
    if rng.random() < 0.3:
        body = mutate(rng, body)
    return WireRequest(_head("POST", path), encode(rng, body), _delivery(rng))


def _broken_json(rng: random.Random) -> WireRequest:
    path = _api(rng)
    data = damage(rng, encode(rng, valid_body(rng, path)))
    return WireRequest(_head("POST", path), data, _delivery(rng))


def _other_endpoint(rng: random.Random) -> WireRequest:
    path = rng.choice((*MESSAGES, "/v1/responses", "/tokenize", "/detokenize", "/tokenizer_info"))
    bodies: dict[str, dict[str, object]] = {
        "/v1/responses": {"model": MODEL, "input": text(rng), "max_output_tokens": 16},
        **dict.fromkeys(MESSAGES, message_body(rng)),
        "/tokenize": {"model": MODEL, "prompt": text(rng)},
        "/detokenize": {"model": MODEL, "tokens": token_ids(rng)},
    }
    extra: dict[str, Callable[[random.Random], object]] = {
        "instructions": text, "stream": lambda r: r.random() < 0.5, "messages": messages,
        "text": lambda r: {"format": anything(r)}, "tools": tools, "metadata": anything,
        "reasoning": lambda r: {"effort": r.choice(("low", "none", 3))}, "store": anything,
        "thinking": lambda r: {"type": r.choice(("enabled", "disabled", "x")), "budget_tokens": 9},
        "system": text, "stop_sequences": lambda r: [text(r)], "output_config": anything,
        "add_special_tokens": lambda r: r.random() < 0.5, "return_token_strs": anything,
    }  # fmt: skip
    drawn = {name: draw(rng) for name, draw in extra.items() if rng.random() < 0.15}
    body: object = bodies.get(path, {}) | drawn
    if rng.random() < 0.5:
        body = mutate(rng, body)
    method = "GET" if path == "/tokenizer_info" else "POST"
    return WireRequest(_head(method, path), encode(rng, body), _delivery(rng))


def _stored_response(rng: random.Random) -> WireRequest:
    method, path, body = draw_stored(rng)
    return WireRequest(_head(method, path), body, _delivery(rng))


def _huge(rng: random.Random) -> WireRequest:
    size = rng.choice(HUGE_BYTES) * 2**20
    filling = rng.choice((b"a", b" ", b"\xf0\x9f\x98\x80", b"[", b"\\u0000", b"0,"))
    data = b'{"model": "target", "prompt": "' + filling * (size // len(filling)) + b'"}'
    delivery = rng.choice((Delivery.WHOLE, Delivery.CHUNKED, Delivery.LEAVE))
    return WireRequest(_head("POST", _api(rng)), data, delivery)


def _long_prompt(rng: random.Random) -> WireRequest:
    """A prompt near the limits of the context and of the body."""
    body = valid_body(rng, COMPLETIONS)
    unit = rng.choice((*STRINGS[1:4], "a", " ", "😀", "\0", "ab "))
    body["prompt"] = (unit * 200_000)[: rng.choice((1000, 6000, 20_000, 60_000, 200_000))]
    if rng.random() < 0.2:
        body["prompt"] = [1] * rng.choice((2000, 2047, 2048, 50_000))
    return WireRequest(_head("POST", COMPLETIONS), encode(rng, body), _delivery(rng))


def _bad_delivery(rng: random.Random) -> WireRequest:
    path = _api(rng)
    data = encode(rng, valid_body(rng, path))
    delivery = rng.choice(
        (Delivery.BAD_CHUNKS, Delivery.CUT, Delivery.SLOW, Delivery.PIPELINED, Delivery.LEAVE)
    )
    return WireRequest(_head("POST", path), data, delivery)


def _bad_head(rng: random.Random) -> WireRequest:
    path = _api(rng)
    data = encode(rng, valid_body(rng, path))
    extra = rng.choice(
        (
            b"content-length: 5\r\ntransfer-encoding: chunked\r\n", b"content-length: -1\r\n",
            b"content-length: 5\r\ncontent-length: 6\r\n", b"content-length: 1e3\r\n",
            b"content-length: %d\r\n" % 10**30, b"x: " + b"a" * 100_000 + b"\r\n", b": a\r\n",
            b"a\r\n", b"x\0y: 1\r\n", b"".join(b"x%d: 1\r\n" % i for i in range(9000)),
            b"expect: 100-continue\r\ncontent-length: 3\r\n", b"upgrade: websocket\r\n",
            b"upgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\nconnection: upgrade\r\n",
            b"traceparent: " + rng.randbytes(20).hex().encode() + b"\r\n", b" folded: 1\r\n",
            b"x-request-id: " + b"\xff" * 300 + b"\r\n", b"x-specdecode-max-steps: -1\r\n",
            b"authorization: Bearer " + b"k" * 9000 + b"\r\n", b"transfer-encoding: gzip\r\n",
            b"content-encoding: gzip\r\n", b"origin: null\r\n", b"range: bytes=0-\r\n",
        )
    )  # fmt: skip
    version = rng.choice((b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9.9", b"", b"\0"))
    head = _head("POST", path, extra=extra)
    if rng.random() < 0.3:
        head = head.replace(b"HTTP/1.1", version, 1)
    return WireRequest(head, data, _delivery(rng), is_malformed=True)


def _route(rng: random.Random) -> WireRequest:
    path = rng.choice((*PATHS, CHAT, COMPLETIONS))
    head = _head(rng.choice(METHODS), path, rng.choice(CONTENT_TYPES))
    return WireRequest(head, b"" if rng.random() < 0.5 else rng.randbytes(100), _delivery(rng))


FUZZ_KINDS: Weights = {
    _valid: 22,
    _mutated: 26,
    _constrained: 14,
    _broken_json: 6,
    _other_endpoint: 8,
    _stored_response: 8,
    _huge: 1,
    _long_prompt: 4,
    _bad_delivery: 7,
    _bad_head: 6,
    _route: 6,
}
SOAK_KINDS: Weights = {
    _valid: 60,
    _mutated: 12,
    _constrained: 6,
    _broken_json: 3,
    _other_endpoint: 8,
    _long_prompt: 6,
    _bad_delivery: 5,
}
BURST_KINDS: Weights = {_long_prompt: 1}
