"""The type in which sums are taken."""

import torch


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Answer float64 for float64, float32 for anything narrower."""
    return torch.float64 if dtype == torch.float64 else torch.float32
