"""Chooses a backend by what the machine and the shapes allow, and says why."""

from importlib.util import find_spec
from typing import Literal, NamedTuple

import torch

from specdecode_kernels import native
from specdecode_kernels.backends.backend import AttentionBackend
from specdecode_kernels.backends.cpu_backend import CpuBackend
from specdecode_kernels.backends.torch_backend import TORCH
from specdecode_kernels.implementation import VARIABLE, forced

Wanted = Literal["auto", "torch", "triton", "flashinfer"]

MAX_DIM = 256
FLASHINFER_DIMS = (64, 128, 256)
HALVES = (torch.float16, torch.bfloat16)
AMPERE, ADA = (8, 0), (8, 9)


class Choice(NamedTuple):
    """A backend, and a sentence for the log that says why it is this one."""

    backend: AttentionBackend
    reason: str


def choose_backend(
    wanted: Wanted,
    device: torch.device,
    dtype: torch.dtype,
    head_dim: int,
    pool_dtype: torch.dtype | None = None,
) -> Choice:
    """Build the wanted backend, or with "auto" Triton's where it can run, on a CPU ours in C where
    it can, and torch's elsewhere.

    `dtype` is that of queries, `pool_dtype` that of the pools where it differs. FlashInfer is
    never chosen by itself: it plans on the host, once for every layout.

    Raises:
        ValueError: a backend that was asked for by name cannot run; the text says why.
    """
    pool_dtype = pool_dtype or dtype
    if wanted == "torch":
        return Choice(TORCH, "torch was asked for")
    if wanted == "flashinfer":
        _refuse("flashinfer", flashinfer_obstacle(device, dtype, head_dim, pool_dtype))
        from specdecode_kernels.backends.flashinfer_backend import FlashInferBackend

        return Choice(FlashInferBackend(device), "flashinfer was asked for")
    obstacle = triton_obstacle(device, dtype, head_dim, pool_dtype)
    if wanted == "triton":
        _refuse("triton", obstacle)
    elif wanted != "auto":
        raise ValueError(f"attention backend {wanted!r} is none of auto, torch, triton, flashinfer")
    elif obstacle is not None or device.type != "cuda":
        return _choose_without_kernels(obstacle, device, dtype, pool_dtype)
    from specdecode_kernels.backends.triton_backend import TritonBackend

    reason = "was asked for" if wanted == "triton" else f"runs {dtype} heads of {head_dim} here"
    return Choice(TritonBackend(device), f"triton {reason}")


def _choose_without_kernels(
    obstacle: str | None,
    device: torch.device,
    dtype: torch.dtype,
    pool_dtype: torch.dtype,
) -> Choice:
    obstacle = obstacle or "interpreted kernels are for tests"
    other = cpu_obstacle(device, dtype, pool_dtype)
    if other is None:
        return Choice(CpuBackend(), f"kernels in C for this processor, as {obstacle}")
    return Choice(TORCH, f"torch, as {obstacle}, and {other}")


def cpu_obstacle(device: torch.device, dtype: torch.dtype, pool_dtype: torch.dtype) -> str | None:
    """Say what keeps the backend for CPUs from running, or nothing; compiles it on the way."""
    if device.type != "cpu":
        return f"kernels in C are for a CPU, not {device}"
    if pool_dtype != dtype:
        return f"kernels in C take pools of the queries' type, not {dtype} over {pool_dtype}"
    if forced() == "torch":
        return f"{VARIABLE} is torch"
    return native.obstacle(dtype)


def triton_obstacle(
    device: torch.device, dtype: torch.dtype, head_dim: int, pool_dtype: torch.dtype
) -> str | None:
    """Say what keeps our kernels from running, or nothing."""
    if find_spec("triton") is None:
        return "triton is not installed; it comes with torch on Linux x86-64"
    if dtype not in (*HALVES, torch.float32):
        return f"the kernels take float16, bfloat16 and float32, not {dtype}"
    if head_dim > MAX_DIM:
        return f"the kernels take heads of up to {MAX_DIM}, not {head_dim}"
    return _device_obstacle(device, pool_dtype)


def flashinfer_obstacle(
    device: torch.device, dtype: torch.dtype, head_dim: int, pool_dtype: torch.dtype
) -> str | None:
    """Say what keeps FlashInfer from running, or nothing."""
    if find_spec("flashinfer") is None:
        return "flashinfer is not installed; pip install flashinfer-python"
    if device.type != "cuda":
        return f"flashinfer needs a CUDA device, not {device}"
    if dtype not in HALVES or head_dim not in FLASHINFER_DIMS:
        return (
            f"flashinfer takes float16 or bfloat16 heads of {FLASHINFER_DIMS}, "
            f"not {dtype} heads of {head_dim}"
        )
    return triton_obstacle(device, dtype, head_dim, pool_dtype)  # its tail and store are ours


def _device_obstacle(device: torch.device, pool_dtype: torch.dtype) -> str | None:
    if device.type != "cuda":
        from specdecode_kernels.triton.numeric import is_interpreted

        if device.type == "cpu" and is_interpreted():
            return None
        return f"the kernels need a CUDA device, not {device}"
    capability = torch.cuda.get_device_capability(device)
    needed = ADA if pool_dtype == torch.float8_e4m3fn else AMPERE
    if capability < needed:
        return f"{pool_dtype} pools need compute capability {needed}, the device has {capability}"
    return None


def _refuse(name: str, obstacle: str | None) -> None:
    if obstacle is not None:
        raise ValueError(f"attention backend {name!r} cannot run: {obstacle}; or choose 'auto'")
