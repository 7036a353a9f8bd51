"""Backends whose functions are bound to the C library of one type; other ops stay as they were."""

from dataclasses import replace
from functools import partial

import torch

from specdecode_kernels.backend import Backend
from specdecode_kernels.cpu import elementwise, linear
from specdecode_kernels.cpu.attention import CpuAttention, store_kv
from specdecode_kernels.cpu.library import load_library


def with_cpu_ops(backend: Backend, dtype: torch.dtype) -> Backend:
    """Replace the ops that take most of a step on a CPU.

    Raises:
        CannotCompile: see `unsupported_reason`.
    """
    library = load_library(dtype)
    return replace(
        backend,
        name="cpu",
        linear=partial(linear.linear, library),
        pack_weight=partial(linear.pack_weight, library),
        rms_norm=partial(elementwise.rms_norm, library),
        add_rms_norm=partial(elementwise.add_rms_norm, library),
        apply_rope=partial(elementwise.apply_rope, library),
        silu_and_mul=partial(elementwise.silu_and_mul, library),
    )


def with_cpu_attention(backend: Backend, dtype: torch.dtype) -> Backend:
    """Replace attention and the writing of the KV cache; see `with_cpu_ops`."""
    library = load_library(dtype)
    return replace(
        backend,
        attention="cpu",
        store_kv=partial(store_kv, library),
        attend=CpuAttention(library).attend,
    )
