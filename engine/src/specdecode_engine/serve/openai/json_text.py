"""Objects of responses as JSON text."""

import json
import secrets
from collections.abc import Callable, Iterator
from typing import Any

from specdecode_engine.serve.openai.routed_experts import Base64Text

_MARK = secrets.token_hex(16)
"""Stands for base64 while the rest is encoded; drawn at start, so that no text contains it."""


PIECE_ITEMS = 16
"""Items of a long list that are encoded at once: other threads wait, and one may have 20 tokens."""


def to_json(value: dict[str, Any], *, in_pieces: bool = False) -> bytes:
    """Encode an object of a response; in pieces, other threads need not wait for all of it.

    Base64 is put in afterwards: the encoder reads a string character by character, and other
    threads would wait for it, 0.1 s for a long text's experts.
    """
    texts: list[Base64Text] = []

    def mark(found: object) -> str:
        if not isinstance(found, Base64Text):
            raise TypeError(f"{type(found).__name__} cannot be written as JSON")
        texts.append(found)
        return _MARK

    encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=mark)
    if in_pieces:
        parts = b"".join(piece.encode() for piece in _pieces(value, encoder.encode))
    else:
        parts = encoder.encode(value).encode()
    if not texts:
        return parts
    first, *others = parts.split(_MARK.encode())
    pieces = [first]
    for text, rest in zip(texts, others, strict=True):
        pieces += (*text.pieces, rest)
    return b"".join(pieces)


def _pieces(value: Any, encode: Callable[[object], str], name: str = "") -> Iterator[str]:
    """Yield the JSON of a value; each of many choices may have lists of any length."""
    if isinstance(value, dict) and value:
        for number, (key, item) in enumerate(value.items()):
            yield f"{',' if number else '{'}{encode(key)}:"
            yield from _pieces(item, encode, key)
        yield "}"
    elif isinstance(value, list) and value:
        step = 1 if name == "choices" or len(value) <= PIECE_ITEMS else PIECE_ITEMS
        for start in range(0, len(value), step):
            yield "," if start else "["
            if step == 1:
                yield from _pieces(value[start], encode)
            else:
                yield encode(value[start : start + step])[1:-1]
        yield "]"
    else:
        yield encode(value)
