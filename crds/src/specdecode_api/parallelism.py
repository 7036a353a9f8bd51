"""Tensor parallelism in resources and boot files."""

from typing import Final

MAX_TENSOR: Final = 16
"""Most ranks of one engine: the GPUs of the largest common machine."""
