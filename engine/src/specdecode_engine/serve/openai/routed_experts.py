"""`routed_experts` of a choice: the experts that computed each token, for routing replay."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specdecode_engine.batch.request import ExpertIds

PIECE_BYTES = 3 << 16
"""Encoded at once, a multiple of 3: base64 holds the interpreter lock, and other threads wait."""

MAX_BYTES = 256 << 20
"""Most bytes of ids that one HTTP request may ask for, over all its choices: they stay in memory
until the response is sent."""


@dataclass(frozen=True, slots=True)
class Base64Text:
    """Base64 in pieces: a string in the response that the JSON encoder need not copy."""

    pieces: tuple[bytes, ...]

    @classmethod
    def of(cls, data: bytes) -> "Base64Text":
        """Encode data; it takes a millisecond per MiB, a part of one for each piece."""
        view = memoryview(data)
        starts = range(0, len(data), PIECE_BYTES)
        return cls(tuple(base64.b64encode(view[at : at + PIECE_BYTES]) for at in starts))


def routed_experts_object(pieces: Sequence[ExpertIds], tokens: int) -> dict[str, Any]:
    """Return the first `tokens` rows of consecutive pieces as base64, with shape and type.

    The shape is [tokens, layers with experts, top_k], the order C's, the bytes little-endian.
    """
    ids = np.concatenate(pieces)[:tokens]
    ids = ids.astype(ids.dtype.newbyteorder("<"), copy=False)
    return {
        "data": Base64Text.of(ids.tobytes()),
        "shape": list(ids.shape),
        "dtype": ids.dtype.name,
    }
