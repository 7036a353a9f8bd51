"""Names the GPU that numbers belong to, with what its memory can do."""

from importlib.metadata import version

import torch

COPIED_BYTES = 1 << 30


def machine() -> dict[str, object]:
    """Name the device, the versions, and the bytes per second that a large copy moves."""
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": version("triton"),
        "copy_gb_per_s": round(copy_bytes_per_s() / 1e9),
    }


def copy_bytes_per_s() -> float:
    """Measure the memory: bytes read and written by a large copy, per second."""
    from triton.testing import do_bench

    source = torch.empty(COPIED_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    took_ms: float = do_bench(lambda: target.copy_(source), return_mode="median")
    return 2 * COPIED_BYTES / (took_ms * 1e-3)
