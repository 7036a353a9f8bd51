"""Which variants of kernels given calls of ops launch, and their compilation before that.

Triton compiles a kernel once for each combination of argument types, of compile-time constants and
of what it specializes on: integers that are 1, integers and addresses divisible by 16. The calls
run through the real launchers, on tensors without memory, up to the launch.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from specdecode_kernels.backend import META, TORCH, Backend, OpCall
from specdecode_kernels.triton.backend import with_triton_attention, with_triton_ops
from specdecode_kernels.triton.float8 import HOPPER


@dataclass(frozen=True, slots=True, eq=False)
class KernelVariant:
    """One kernel to compile."""

    kernel: str
    signature: str  # types and constants by argument; "/16" marks what is divisible by 16
    reasons: tuple[str, ...]  # what it is needed for
    function: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]


def meta_backend(capability: int, splits: int | None = None) -> Backend:
    """Backend of Triton's ops on `META` as on a device of this compute capability, such as 90.

    Attention runs in `splits`, whatever the shapes.
    """
    converts_float8 = divmod(capability, 10) >= HOPPER
    ops = with_triton_ops(TORCH)
    return with_triton_attention(ops, META, splits=splits, converts_float8=converts_float8)


def list_variants(calls: Iterable[OpCall], capability: int) -> tuple[KernelVariant, ...]:
    """Return the variants that the calls launch on a device of this compute capability."""
    backend = make_backend(GPUTarget("cuda", capability, 32))
    binders: dict[Any, Callable[..., Any]] = {}
    reasons: dict[tuple[str, str], dict[str, None]] = {}
    launches: dict[tuple[str, str], tuple[Any, tuple[Any, ...], dict[str, Any]]] = {}
    needed_for = ""

    def launch(function: Any, *arguments: Any, **options: Any) -> None:
        for name in ("grid", "warmup"):
            options.pop(name)
        if function not in binders:
            binder = create_function_from_signature(function.signature, function.params, backend)
            binders[function] = binder
        _, specialization, others = binders[function](*arguments, **options)
        key = function.__name__.strip("_"), _signature(function, specialization, others)
        reasons.setdefault(key, {})[needed_for] = None
        launches.setdefault(key, (function, arguments, options))

    with _launching(launch):
        for needed_for, call in calls:  # noqa: B007 -- read by `launch`
            call()
    return tuple(
        KernelVariant(name, signature, tuple(reasons[name, signature]), *launched)
        for (name, signature), launched in launches.items()
    )


def compile_variants(variants: Iterable[KernelVariant], threads: int) -> Iterator[None]:
    """Compile for the current device, or read from the cache on disk; yield once for each."""
    with ThreadPoolExecutor(threads) as executor, triton.AsyncCompileMode(executor) as mode:
        for one in variants:
            one.function.run(*one.arguments, grid=(1,), warmup=True, **one.options)
        for _ in as_completed(mode.raw_futures):
            yield


@contextmanager
def _launching(launch: Callable[..., None]) -> Iterator[None]:
    original = JITFunction.run
    JITFunction.run = launch
    try:
        yield
    finally:
        JITFunction.run = original


def _signature(function: Any, specialization: Any, options: dict[str, Any]) -> str:
    named = zip((one.name for one in function.params), specialization, strict=True)
    shown = [f"{name}: {_shown(*kind)}" for name, kind in named]
    return ", ".join([*shown, *(f"{name}={value}" for name, value in sorted(options.items()))])


def _shown(kind: Any, detail: Any) -> str:
    if isinstance(kind, tuple):
        return f"({', '.join(_shown(*each) for each in zip(kind, detail, strict=True))})"
    if kind == "constexpr":
        return str(detail)
    return f"{kind}/16" if detail == "D" else str(kind)
