"""Objects of responses as JSON text."""

import json
import secrets
from typing import Any

from specdecode_engine.serve.openai.routed_experts import Base64Text

_MARK = secrets.token_hex(16)
"""Stands for base64 while the rest is encoded; drawn at start, so that no text contains it."""


def to_json(value: dict[str, Any]) -> bytes:
    """Encode an object of a response.

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
    parts = encoder.encode(value).encode()
    if not texts:
        return parts
    first, *others = parts.split(_MARK.encode())
    pieces = [first]
    for text, rest in zip(texts, others, strict=True):
        pieces += (*text.pieces, rest)
    return b"".join(pieces)
