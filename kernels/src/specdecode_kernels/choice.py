"""Chooses an engine's backend by what the machine and the shapes allow, and gives the reasons."""

import os
import platform
from collections.abc import Collection, Iterable
from importlib.util import find_spec
from typing import Literal, NamedTuple, get_args

import torch

from specdecode_kernels import cpu
from specdecode_kernels.backend import TORCH, Backend
from specdecode_kernels.cpu.compile import processor_flags
from specdecode_kernels.metadata import DEFAULT_ATTENTION, FLOAT8, AttentionParams
from specdecode_kernels.packed_weights import SumOrder

Attention = Literal["auto", "torch", "triton", "flashinfer"]
Kernels = Literal["torch", "triton", "cpu"]

KERNELS_VARIABLE = "SPECDECODE_KERNELS"
"""Forces the implementation of all ops, and of attention where that is "auto": for debugging,
and for tests under Triton's interpreter."""
LINEARS_VARIABLE = "SPECDECODE_LINEARS"
"""`plain` keeps every weight unpacked: for debugging, or to change weights."""

MAX_DIM = 512
MAX_FLOAT32_DIM = 128
MAX_LATENT_REST = 64
"""Entries of a key after its latent, of which Triton's kernels hold a tile of their own."""
FLASHINFER_DIMS = (64, 128, 256)
FLASHINFER_EXTRA = "pip install 'specdecode-engine[gpu]'"
"""Installs FlashInfer, and the compiler for kernels that the image does not contain."""
HALVES = (torch.float16, torch.bfloat16)
AMPERE = (8, 0)


class Choice(NamedTuple):
    """A backend, why its attention is this one, and why its weights stay plain if they do."""

    backend: Backend
    reason: str
    plain_weights: str | None

    def attention_by_forward(
        self, forwards: Iterable[str], *, in_graphs: bool
    ) -> dict[str, dict[str, str]]:
        """Return backend and reason of each forward, as /server_info reports them.

        Args:
            forwards: of `TARGET_FORWARDS` or `DRAFT_FORWARDS`.
            in_graphs: whether decode steps replay CUDA graphs.
        """
        chosen = {"backend": self.backend.attention, "reason": self.reason}
        if self.backend.attention != "flashinfer":
            return dict.fromkeys(forwards, chosen)
        reasons = OTHERWISE_TRITON | (IN_GRAPHS if in_graphs else {})
        return {
            name: {"backend": "triton", "reason": reasons[name]} if name in reasons else chosen
            for name in forwards
        }


TARGET_FORWARDS = ("prefill", "decode", "verify_chain", "verify_tree")
DRAFT_FORWARDS = ("prefill", "draft")
OTHERWISE_TRITON = {
    "verify_chain": "flashinfer runs it where nothing is split: it would merge the parts of "
    "several rows by the host's bound of their length, with overlap not the true one",
    "verify_tree": "flashinfer has no kernel for pages and tree KV in one pass",
    "draft": "flashinfer's plan would need lengths that only the device knows",
}
_UNPLANNED = "CUDA graphs: flashinfer would plan on the host before each replay; eager: "
IN_GRAPHS = {
    "decode": f"{_UNPLANNED}flashinfer",
    "verify_chain": f"{_UNPLANNED}flashinfer where nothing is split",
}
"""Why forwards run on Triton where FlashInfer was chosen; see `flashinfer`."""


class _Target(NamedTuple):
    """What the ops will run on."""

    device: torch.device
    dtype: torch.dtype
    head_dim: int
    kv_dtype: torch.dtype
    v_head_dim: int
    layers: Collection[AttentionParams]
    is_latent: bool

    @property
    def widest(self) -> int:
        """Entries of the widest tile that attention holds."""
        has_rest = self.is_latent and self.head_dim - self.v_head_dim <= MAX_LATENT_REST
        return self.v_head_dim if has_rest else max(self.head_dim, self.v_head_dim)


def choose_backend(
    attention: Attention,
    device: torch.device,
    dtype: torch.dtype,
    head_dim: int,
    kv_dtype: torch.dtype | None = None,
    *,
    v_head_dim: int | None = None,
    layers: Collection[AttentionParams] = (DEFAULT_ATTENTION,),
    is_latent: bool = False,
    sums: SumOrder = "inputs",
) -> Choice:
    """Choose Triton on a GPU, C on a CPU, torch where neither can run; called once per model.

    Head sizes are the greatest of all layers: `head_dim` of keys, `v_head_dim` of values where that
    differs; with `is_latent` values are the first entries of keys. `layers` are the parameters of
    their attention; sinks may be on the meta device.

    `attention` names another implementation of the ops on cached keys and values, or is "auto".
    `dtype` is that of weights and queries, `kv_dtype` that of the KV cache where it differs. "auto"
    prefers FlashInfer for the forwards that it can run, after a call of it on the device for each
    kind of layer: with a window or without, with a softcap or without.

    `sums` is the order in which packed weights of kernels in C are multiplied by rows of bfloat16.

    Raises:
        ValueError: attention that was asked for by name cannot run, or an environment variable has
            a value that does not exist.
    """
    if attention not in get_args(Attention):
        raise ValueError(
            f"attention backend {attention!r} is none of auto, torch, triton, flashinfer"
        )
    forced = forced_kernels()
    v_head_dim = v_head_dim or head_dim
    kv_dtype = kv_dtype or dtype
    target = _Target(device, dtype, head_dim, kv_dtype, v_head_dim, layers, is_latent)
    ops = _choose_ops(forced, device, dtype, sums)
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


def _choose_ops(
    forced: Kernels | None, device: torch.device, dtype: torch.dtype, sums: SumOrder
) -> Backend:
    """Choose all ops but attention; float64 always stays with torch, it is there to be exact."""
    if forced == "torch" or dtype == torch.float64:
        return TORCH
    if forced == "triton" or (not forced and _has_triton(device)):
        from specdecode_kernels.triton.backend import with_triton_ops
        from specdecode_kernels.triton.dependent_launch import read_switch

        read_switch(device)
        return with_triton_ops(TORCH)
    if device.type == "cpu" and cpu.unsupported_reason(dtype) is None:
        return cpu.with_cpu_ops(TORCH, dtype, sums)
    return TORCH


def _has_triton(device: torch.device) -> bool:
    """Whether Triton compiles for the device: the kernels are written for Ampere and later."""
    if device.type != "cuda" or find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= AMPERE


def _choose_attention(
    ops: Backend, attention: Attention, forced: Kernels | None, target: _Target
) -> tuple[Backend, str]:
    if attention == "torch":
        return ops, "torch was asked for"
    unsupported = triton_unsupported(target.device, target.dtype, target.widest, target.kv_dtype)
    if attention != "auto":
        _refuse(attention, unsupported)
        backend = _triton(ops, target)
        if attention == "flashinfer":
            backend, missing = _flashinfer(backend, target)
            _refuse(attention, missing)
        return backend, f"{attention} was asked for"
    if forced == "torch":
        return ops, f"torch, as {KERNELS_VARIABLE} is torch"
    if unsupported is None and (target.device.type == "cuda" or forced == "triton"):
        backend = _triton(ops, target)
        reason = f"triton runs {target.dtype} heads of {target.head_dim} here"
        if forced == "triton":
            return backend, reason
        backend, missing = _flashinfer(backend, target)
        return backend, f"{reason}; {missing}" if missing else "flashinfer runs here"
    unsupported = unsupported or "interpreted kernels are for tests"
    on_cpu = cpu_unsupported(target.device, target.dtype, target.kv_dtype)
    if on_cpu is None:
        reason = f"kernels in C for this processor, as {unsupported}"
        backend = cpu.with_cpu_attention(ops, target.dtype)
        return cpu.with_fused_layers(backend, target.dtype), reason
    return ops, f"torch, as {unsupported}, and {on_cpu}"


def _triton(ops: Backend, target: _Target) -> Backend:
    from specdecode_kernels.triton.backend import with_triton_attention

    return with_triton_attention(ops, target.device)


def _flashinfer(backend: Backend, target: _Target) -> tuple[Backend, str | None]:
    """Return the backend with FlashInfer, or unchanged and the reason."""
    unsupported = _flashinfer_unsupported(target)
    if unsupported is not None:
        return backend, unsupported
    try:
        from specdecode_kernels.flashinfer import with_flashinfer

        return with_flashinfer(backend, *target[:4], target.layers), None
    except Exception as error:  # of any kind: an import, a compiler, a driver
        if isinstance(error, ModuleNotFoundError) and error.name == "flashinfer":
            return backend, f"flashinfer is not installed: {FLASHINFER_EXTRA}"
        what = f"{type(error).__name__}: {error}".partition("\n")[0]
        return backend, f"flashinfer failed its first call ({what}): {FLASHINFER_EXTRA}"


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


def blocks32_unsupported_reason(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why sums cannot have the order blocks32, None if they can; compiles kernels in C."""
    if device.type != "cpu":
        return f"it is for a CPU, and the engine runs on {device}: set device to cpu"
    if dtype != torch.bfloat16:
        name = str(dtype).removeprefix("torch.")
        return f"it is for rows of bfloat16, and these are {name}: set model.dtype to bfloat16"
    if platform.machine() != "x86_64":
        return (
            f"it is for x86-64, and this processor is {platform.machine()}, which decides "
            "otherwise which sums are below 2^-126: use another node"
        )
    if "fma" not in processor_flags():
        return (
            "it needs fused multiply-adds, and the flags in /proc/cpuinfo have no fma: use "
            "another node"
        )
    forced = forced_kernels()
    ops = _choose_ops(forced, device, dtype, "inputs")
    plain = _plain_weights(ops, forced, device, dtype)
    return plain and f"it needs weights that are packed for kernels in C: {plain}; change that"


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
    return heads_unsupported(dtype, head_dim, kv_dtype) or _device_unsupported(device)


def heads_unsupported(dtype: torch.dtype, head_dim: int, kv_dtype: torch.dtype) -> str | None:
    """Return why attention by Triton takes no such heads on any device, None if it does."""
    if dtype not in (*HALVES, torch.float32):
        return f"the kernels take float16, bfloat16 and float32, not {dtype}"
    if kv_dtype not in (dtype, FLOAT8):
        return (
            f"the kernels take a KV cache of {dtype}, as the queries, or {FLOAT8}, not {kv_dtype}"
        )
    if head_dim > MAX_DIM:
        return f"the kernels take heads of up to {MAX_DIM}, not {head_dim}"
    if dtype == torch.float32 and head_dim > MAX_FLOAT32_DIM:
        return (
            f"float32 heads of more than {MAX_FLOAT32_DIM} do not fit into registers, "
            f"these have {head_dim}"
        )
    return None


def _flashinfer_unsupported(target: _Target) -> str | None:
    """Return why FlashInfer cannot run where Triton can, None if it can if it is installed."""
    if target.device.type != "cuda":
        return f"flashinfer needs a CUDA device, not {target.device}"
    if target.dtype not in HALVES or target.head_dim not in FLASHINFER_DIMS:
        return (
            f"flashinfer takes float16 or bfloat16 heads of {FLASHINFER_DIMS}, "
            f"not {target.dtype} heads of {target.head_dim}"
        )
    if target.v_head_dim != target.head_dim:
        return (
            f"flashinfer takes keys and values of one head size, not {target.head_dim} "
            f"and {target.v_head_dim}"
        )
    if any(params.sinks is not None for params in target.layers):
        return "flashinfer's paged kernels take no sinks"
    return None


def _device_unsupported(device: torch.device) -> str | None:
    if device.type != "cuda":
        from specdecode_kernels.triton.tiles import is_interpreted

        if device.type == "cpu" and is_interpreted():
            return None
        return f"the kernels need a CUDA device, not {device}"
    capability = torch.cuda.get_device_capability(device)
    if capability < AMPERE:
        return f"the kernels need compute capability {AMPERE}, this device is {capability}"
    return None


def _refuse(name: str, unsupported: str | None) -> None:
    if unsupported is not None:
        raise ValueError(f"attention backend {name!r} cannot run: {unsupported}; or choose 'auto'")
