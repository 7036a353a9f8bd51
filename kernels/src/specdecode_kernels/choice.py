"""Chooses an engine's backend by what the machine and the shapes allow, and gives the reasons."""

import os
from importlib.util import find_spec
from typing import Literal, NamedTuple, get_args

import torch

from specdecode_kernels import cpu
from specdecode_kernels.backend import TORCH, Backend
from specdecode_kernels.metadata import FLOAT8

Attention = Literal["auto", "torch", "triton", "flashinfer"]
Kernels = Literal["torch", "triton", "cpu"]

KERNELS_VARIABLE = "SPECDECODE_KERNELS"
"""Forces the implementation of all ops, and of attention where that is "auto": for debugging,
and for tests under Triton's interpreter."""
LINEARS_VARIABLE = "SPECDECODE_LINEARS"
"""`plain` keeps every weight unpacked: for debugging, or to change weights."""

MAX_DIM = 256
FLASHINFER_DIMS = (64, 128, 256)
HALVES = (torch.float16, torch.bfloat16)
AMPERE, ADA = (8, 0), (8, 9)


class Choice(NamedTuple):
    """A backend, why its attention is this one, and why its weights stay plain if they do."""

    backend: Backend
    reason: str
    plain_weights: str | None


class _Target(NamedTuple):
    """What the ops will run on."""

    device: torch.device
    dtype: torch.dtype
    head_dim: int
    kv_dtype: torch.dtype


def choose_backend(
    attention: Attention,
    device: torch.device,
    dtype: torch.dtype,
    head_dim: int,
    kv_dtype: torch.dtype | None = None,
) -> Choice:
    """Choose Triton on a GPU, C on a CPU, torch where neither can run; called once per model.

    `attention` names another implementation of the ops on cached keys and values, or is "auto".
    FlashInfer has to be named: it plans on the host, once for every metadata. `dtype` is that of
    weights and queries, `kv_dtype` that of the KV cache where it differs.

    Raises:
        ValueError: attention that was asked for by name cannot run, or an environment variable has
            a value that does not exist.
    """
    if attention not in get_args(Attention):
        raise ValueError(
            f"attention backend {attention!r} is none of auto, torch, triton, flashinfer"
        )
    forced = forced_kernels()
    target = _Target(device, dtype, head_dim, kv_dtype or dtype)
    ops = _choose_ops(forced, device, dtype)
    backend, reason = _choose_attention(ops, attention, forced, target)
    return Choice(backend, reason, _plain_weights(backend, forced, device, dtype))


def forced_kernels() -> Kernels | None:
    """Read which implementation the environment selects.

    Raises:
        ValueError: it does not exist.
    """
    wanted = os.environ.get(KERNELS_VARIABLE, "")
    for name in get_args(Kernels):
        if wanted == name:
            return name  # type: ignore[no-any-return]
    if wanted:
        raise ValueError(f"{KERNELS_VARIABLE}={wanted!r} does not exist: set torch, triton or cpu")
    return None


def _choose_ops(forced: Kernels | None, device: torch.device, dtype: torch.dtype) -> Backend:
    """Choose all ops but attention; float64 always stays with torch, it is there to be exact."""
    if forced == "torch" or dtype == torch.float64:
        return TORCH
    if forced == "triton" or (not forced and device.type == "cuda" and find_spec("triton")):
        from specdecode_kernels.triton.backend import with_triton_ops

        return with_triton_ops(TORCH)
    if device.type == "cpu" and cpu.unsupported_reason(dtype) is None:
        return cpu.with_cpu_ops(TORCH, dtype)
    return TORCH


def _choose_attention(
    ops: Backend, attention: Attention, forced: Kernels | None, target: _Target
) -> tuple[Backend, str]:
    if attention == "torch":
        return ops, "torch was asked for"
    unsupported = triton_unsupported(*target)
    if attention == "flashinfer":
        _refuse("flashinfer", flashinfer_unsupported(*target))
        from specdecode_kernels.flashinfer import with_flashinfer

        return with_flashinfer(ops, target.device), "flashinfer was asked for"
    if attention == "triton":
        _refuse("triton", unsupported)
        return _triton(ops, target), "triton was asked for"
    if forced == "torch":
        return ops, f"torch, as {KERNELS_VARIABLE} is torch"
    if unsupported is None and (target.device.type == "cuda" or forced == "triton"):
        return _triton(ops, target), f"triton runs {target.dtype} heads of {target.head_dim} here"
    unsupported = unsupported or "interpreted kernels are for tests"
    on_cpu = cpu_unsupported(target.device, target.dtype, target.kv_dtype)
    if on_cpu is None:
        reason = f"kernels in C for this processor, as {unsupported}"
        return cpu.with_cpu_attention(ops, target.dtype), reason
    return ops, f"torch, as {unsupported}, and {on_cpu}"


def _triton(ops: Backend, target: _Target) -> Backend:
    from specdecode_kernels.triton.backend import with_triton_attention

    return with_triton_attention(ops, target.device)


def _plain_weights(
    backend: Backend, forced: Kernels | None, device: torch.device, dtype: torch.dtype
) -> str | None:
    wanted = os.environ.get(LINEARS_VARIABLE, "")
    if wanted not in ("", "plain"):
        raise ValueError(f"{LINEARS_VARIABLE}={wanted!r} is unknown: set plain, or leave it out")
    if wanted == "plain":
        return f"{LINEARS_VARIABLE} is plain"
    if backend.pack_weight is not None:
        return None
    if forced:
        return f"{KERNELS_VARIABLE} is {forced}"
    if device.type != "cpu":
        return f"packing is for a CPU, not {device}"
    return cpu.unsupported_reason(dtype)


def cpu_unsupported(device: torch.device, dtype: torch.dtype, kv_dtype: torch.dtype) -> str | None:
    """Return why attention in C cannot run, None if it can; compiles it."""
    if device.type != "cpu":
        return f"kernels in C are for a CPU, not {device}"
    if kv_dtype != dtype:
        return f"kernels in C take a KV cache of the queries' type, not {dtype} over {kv_dtype}"
    return cpu.unsupported_reason(dtype)


def triton_unsupported(
    device: torch.device, dtype: torch.dtype, head_dim: int, kv_dtype: torch.dtype
) -> str | None:
    """Return why attention by Triton cannot run, None if it can."""
    if find_spec("triton") is None:
        return "triton is not installed; it comes with torch on Linux x86-64"
    if dtype not in (*HALVES, torch.float32):
        return f"the kernels take float16, bfloat16 and float32, not {dtype}"
    if head_dim > MAX_DIM:
        return f"the kernels take heads of up to {MAX_DIM}, not {head_dim}"
    return _device_unsupported(device, kv_dtype)


def flashinfer_unsupported(
    device: torch.device, dtype: torch.dtype, head_dim: int, kv_dtype: torch.dtype
) -> str | None:
    """Return why FlashInfer cannot run, None if it can."""
    if find_spec("flashinfer") is None:
        return "flashinfer is not installed; pip install flashinfer-python"
    if device.type != "cuda":
        return f"flashinfer needs a CUDA device, not {device}"
    if dtype not in HALVES or head_dim not in FLASHINFER_DIMS:
        return (
            f"flashinfer takes float16 or bfloat16 heads of {FLASHINFER_DIMS}, "
            f"not {dtype} heads of {head_dim}"
        )
    # Triton attends to tree KV and stores rows.
    return triton_unsupported(device, dtype, head_dim, kv_dtype)


def _device_unsupported(device: torch.device, kv_dtype: torch.dtype) -> str | None:
    if device.type != "cuda":
        from specdecode_kernels.triton.tiles import is_interpreted

        if device.type == "cpu" and is_interpreted():
            return None
        return f"the kernels need a CUDA device, not {device}"
    capability = torch.cuda.get_device_capability(device)
    needed = ADA if kv_dtype == FLOAT8 else AMPERE
    if capability < needed:
        return (
            f"a {kv_dtype} KV cache needs compute capability {needed}, this device is {capability}"
        )
    return None


def _refuse(name: str, unsupported: str | None) -> None:
    if unsupported is not None:
        raise ValueError(f"attention backend {name!r} cannot run: {unsupported}; or choose 'auto'")
