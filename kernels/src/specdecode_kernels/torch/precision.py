"""The types in which the references take sums: wider than what they read and write."""

import torch


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 for float64, float32 for anything narrower: for norms, gates and rotations."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def mixing_dtype(dtype: torch.dtype) -> torch.dtype:
    """A type wider than `dtype`, except for float64 itself: for attention.

    Kernels are compared with a reference whose own rounding is too small to matter.
    """
    return torch.float64 if dtype in (torch.float32, torch.float64) else torch.float32
