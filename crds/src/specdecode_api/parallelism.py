"""Tensor parallelism in resources and boot files."""

from typing import Final

MAX_PARTS: Final = 64
"""Most pipeline stages, copies or nodes of one engine."""

MAX_TENSOR: Final = 16
"""Most ranks of one engine: the GPUs of the largest common machine."""
