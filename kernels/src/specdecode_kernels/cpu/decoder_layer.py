"""Launcher of whole decoder layers: one call of C instead of one for each op."""

import ctypes
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from specdecode_kernels.backend import Backend
from specdecode_kernels.cpu.attention import MetadataInC, fits, params_in_c
from specdecode_kernels.cpu.library import Library, load_library
from specdecode_kernels.layer_parts import FusedLayer, FusibleLayer, MapPart, NormPart
from specdecode_kernels.metadata import AttentionMetadata, LayerKV
from specdecode_kernels.weights import PackedWeight


class _NormInC(ctypes.Structure):
    """`struct norm` of decoder_layer.c."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("is_wide", ctypes.c_int64),
        ("eps", ctypes.c_float),
    )


class _MapInC(ctypes.Structure):
    """`struct map` of decoder_layer.c."""

    _fields_ = (("weight", ctypes.c_void_p), ("bias", ctypes.c_void_p))


class _LayerInC(ctypes.Structure):
    """`struct layer` of decoder_layer.c."""

    _fields_ = (
        *[(name, _NormInC) for name in ("input", "q", "k", "mlp")],
        *[(name, _MapInC) for name in ("qkv", "output", "gate_up", "down")],
        *[(name, ctypes.c_int64) for name in ("q_heads", "kv_heads", "head_dim", "is_gelu")],
        ("params", ctypes.c_void_p),
    )


class _RowsInC(ctypes.Structure):
    """`struct rows` of decoder_layer.c."""

    _fields_ = (
        *[(name, ctypes.c_void_p) for name in ("cos", "sin", "slots", "k_pool", "v_pool")],
        ("metadata", ctypes.c_void_p),
        ("count", ctypes.c_int64),
    )


def with_fused_layers(backend: Backend, dtype: torch.dtype) -> Backend:
    """Let a backend whose ops and attention are in C compute whole layers; see `with_cpu_ops`."""
    if not backend.name == backend.attention == "cpu":
        return backend
    return replace(backend, fuse_layer=partial(_fuse_layer, load_library(dtype), MetadataInC()))


def _fuse_layer(library: Library, metadata: MetadataInC, parts: FusibleLayer) -> FusedLayer | None:
    """Return a function that computes the layer, or None if C has not all of its parts."""
    maps = parts.qkv, parts.output, parts.gate_up, parts.down
    norms = parts.input_norm, parts.mlp_norm, parts.q_norm, parts.k_norm
    has_one_width = parts.qkv.weight.shape[1] == parts.output.weight.shape[0]
    if not has_one_width or not all(_takes_map(library, one) for one in maps):
        return None
    if not all(one is None or _takes_norm(library, one) for one in norms):
        return None
    return _CpuLayer(library, metadata, parts)


class _CpuLayer:
    """A layer in C's form; it refers to the tensors of its parts."""

    def __init__(self, library: Library, metadata: MetadataInC, parts: FusibleLayer) -> None:
        self._library = library
        self._metadata = metadata
        self._held = parts, params_in_c(parts.attention, parts.head_dim)
        norms = parts.input_norm, parts.q_norm, parts.k_norm, parts.mlp_norm
        maps = parts.qkv, parts.output, parts.gate_up, parts.down
        self._in_c = _LayerInC(
            *[_norm_in_c(library, one) for one in norms],
            *[_map_in_c(one) for one in maps],
            parts.q_heads,
            parts.kv_heads,
            parts.head_dim,
            parts.is_gelu,
            ctypes.addressof(self._held[1]),
        )
        self._address = ctypes.addressof(self._in_c)
        (width, hidden), (_, inner) = parts.qkv.weight.shape, parts.down.weight.shape
        q_width = parts.output.weight.shape[1]
        self._work_columns = 3 * hidden + max(width, 2 * inner) + max(q_width, inner)

    def __call__(
        self,
        x: Tensor,
        rotary: tuple[Tensor, Tensor],
        kv: LayerKV,
        slot_mapping: Tensor,
        metadata: AttentionMetadata,
    ) -> Tensor | None:
        cos, sin = rotary
        in_c = self._metadata.of(metadata)
        if in_c is None or cos.dtype != torch.float32 or not fits(self._library, x, kv):
            return None
        count, x, slot_mapping = x.shape[0], x.contiguous(), slot_mapping.contiguous()
        cos, sin = cos.contiguous(), sin.contiguous()
        out, work = torch.empty_like(x), x.new_empty(count * self._work_columns)
        rows = _RowsInC(
            cos.data_ptr(),
            sin.data_ptr(),
            slot_mapping.data_ptr(),
            kv.k.data_ptr(),
            kv.v.data_ptr(),
            ctypes.addressof(in_c),
            count,
        )
        self._library.decoder_layer(
            self._address,
            ctypes.addressof(rows),
            x.data_ptr(),
            out.data_ptr(),
            work.data_ptr(),
        )
        return out


def _takes_map(library: Library, part: MapPart) -> bool:
    weight, bias = part.weight, part.bias
    is_packed = isinstance(weight, PackedWeight) and weight.dtype == library.dtype
    return is_packed and (bias is None or (bias.dtype == library.dtype and bias.is_contiguous()))


def _takes_norm(library: Library, part: NormPart) -> bool:
    return part.weight.dtype in (library.dtype, torch.float32) and part.weight.is_contiguous()


def _norm_in_c(library: Library, part: NormPart | None) -> _NormInC:
    if part is None:
        return _NormInC()
    return _NormInC(part.weight.data_ptr(), part.weight.dtype != library.dtype, part.eps)


def _map_in_c(part: MapPart) -> _MapInC:
    assert isinstance(part.weight, PackedWeight)
    return _MapInC(part.weight.address, None if part.bias is None else part.bias.data_ptr())
