"""`routed_experts` of a choice: the experts that computed each token, for routing replay."""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from specdecode_engine.batch.request import ExpertIds

PIECE_BYTES = 3 << 16
"""Encoded at once, a multiple of 3: base64 holds the interpreter lock, and other threads wait."""


def routed_experts_object(pieces: Sequence[ExpertIds], tokens: int) -> dict[str, Any]:
    """Return the first `tokens` rows of consecutive pieces as base64, with shape and type.

    The shape is [tokens, layers with experts, top_k], the order C's, the bytes little-endian. It
    takes milliseconds for long texts.
    """
    ids = np.concatenate(pieces)[:tokens]
    ids = ids.astype(ids.dtype.newbyteorder("<"), copy=False)
    data = memoryview(ids.tobytes())
    encoded = [
        base64.b64encode(data[start : start + PIECE_BYTES])
        for start in range(0, len(data), PIECE_BYTES)
    ]
    return {
        "data": b"".join(encoded).decode("ascii"),
        "shape": list(ids.shape),
        "dtype": ids.dtype.name,
    }
