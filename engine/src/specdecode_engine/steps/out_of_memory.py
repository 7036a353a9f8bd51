"""Errors of the device's memory, after which a step can be tried again."""

import torch


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether an allocation failed: torch's own, or that of a launch or of a library."""
    return isinstance(error, torch.OutOfMemoryError) or "CUDA error: out of memory" in str(error)


def release_cached_memory() -> None:
    """Return to the device what torch keeps of freed tensors; without a GPU nothing."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
