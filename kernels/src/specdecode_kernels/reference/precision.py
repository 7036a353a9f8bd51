"""The types in which sums are taken, so that a row's result does not depend on its neighbours.

How many rows are computed together decides in which order sums are taken, and so the last bits. The
same row must nevertheless come out the same in a decode, a verify and a prefill batch.
"""

import torch


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Answer float64 for float64, float32 for anything narrower: for sums along one row."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def mixing_dtype(dtype: torch.dtype) -> torch.dtype:
    """Answer a type wider than `dtype`, float64 itself excepted: for sums over many rows.

    Rounding a wider sum hides the order in which it was taken, but for one sum in some 10^8.
    """
    return torch.float64 if dtype in (torch.float32, torch.float64) else torch.float32
