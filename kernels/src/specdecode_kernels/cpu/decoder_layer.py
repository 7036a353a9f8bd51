"""Launcher of whole decoder layers: one call of C for as many as follow one another."""

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from specdecode_kernels.backend import Backend
from specdecode_kernels.cpu.attention import MetadataInC, fits, params_in_c
from specdecode_kernels.cpu.library import Library
from specdecode_kernels.cpu.loading import load_library
from specdecode_kernels.layer_parts import (
    FusedKV,
    FusedLayer,
    FusedRows,
    FusibleLayer,
    MapPart,
    NormPart,
)
from specdecode_kernels.low_rank import LayerLowRank, LowRankMaps
from specdecode_kernels.packed_weights import PackedWeight


class _NormInC(ctypes.Structure):
    """`struct norm` of decoder_layer.c."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("is_wide", ctypes.c_int64),
        ("eps", ctypes.c_float),
    )


class _MapInC(ctypes.Structure):
    """`struct map` of decoder_layer.c."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("weight", "bias", "low_rank"))


class _LayerInC(ctypes.Structure):
    """`struct layer` of decoder_layer.c."""

    _fields_ = (
        *[(name, _NormInC) for name in ("input", "q", "k", "mlp")],
        *[(name, _MapInC) for name in ("qkv", "output", "gate_up", "down")],
        *[(name, ctypes.c_int64) for name in ("q_heads", "kv_heads", "head_dim", "is_gelu")],
        ("params", ctypes.c_void_p),
    )


class _KvInC(ctypes.Structure):
    """`struct fused_kv` of decoder_layer.c."""

    _fields_ = tuple(
        (name, ctypes.c_void_p) for name in ("k_pool", "v_pool", "k_scratch", "v_scratch")
    )


class _RowsInC(ctypes.Structure):
    """`struct rows` of decoder_layer.c; `held` is what it points into."""

    _fields_ = (
        *[(name, ctypes.c_void_p) for name in ("cos", "sin", "slots", "node_rows", "metadata")],
        ("mask", ctypes.c_void_p),
        *[(name, ctypes.c_int64) for name in ("mask_batch_stride", "mask_query_stride")],
        *[(name, ctypes.c_int64) for name in ("outside", "count", "scratch_rows", "first")],
        ("low_rank", ctypes.c_void_p),
    )
    held: tuple[object, ...]


def with_fused_layers(backend: Backend, dtype: torch.dtype) -> Backend:
    """Let a backend whose ops and attention are in C compute whole layers; see `with_cpu_ops`."""
    if not backend.name == backend.attention == "cpu":
        return backend
    return replace(backend, fuse_layer=partial(_fuse_layer, load_library(dtype), MetadataInC()))


def _fuse_layer(library: Library, metadata: MetadataInC, parts: FusibleLayer) -> FusedLayer | None:
    """Return a function that computes the layer, or None if C has not all of its parts."""
    maps = parts.qkv, parts.output, parts.gate_up, parts.down
    norms = parts.input_norm, parts.mlp_norm, parts.q_norm, parts.k_norm
    if not all(_takes_map(library, one) for one in maps):
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
        added = _low_rank_of(parts.low_rank)
        self._in_c = _LayerInC(
            *[_norm_in_c(library, one) for one in norms],
            *[_map_in_c(one, low_rank) for one, low_rank in zip(maps, added, strict=True)],
            parts.q_heads,
            parts.kv_heads,
            parts.head_dim,
            parts.is_gelu,
            ctypes.addressof(self._held[1]),
        )
        self.address = ctypes.addressof(self._in_c)
        self.active = None if parts.low_rank is None else parts.low_rank.active
        self.reads = parts.qkv.weight.shape[1]  # entries of a row

    def __call__(
        self,
        x: Tensor,
        rotary: tuple[Tensor, Tensor],
        kvs: Sequence[FusedKV],
        rows: FusedRows,
        *,
        following: Sequence[FusedLayer] = (),
        ends: Sequence[int] = (),
        read: Tensor | None = None,
    ) -> list[Tensor] | None:
        cos, sin = rotary
        metadata = self._metadata.of(rows.metadata)
        if metadata is None or cos.dtype != torch.float32 or not self._fits(x, kvs, read):
            return None
        layers = [self]
        for one in following:
            assert isinstance(one, _CpuLayer)
            assert one.reads == x.shape[1]
            layers.append(one)
        x, read = x.contiguous(), None if read is None else read.contiguous()
        in_c = _rows_in_c(cos.contiguous(), sin.contiguous(), rows, metadata)
        active = next((one.active for one in layers if one.active is not None), None)
        if active is not None and active.rows is not None:
            assert active.rows.num_rows == len(x), "C would write after the rows"
            in_c.low_rank = active.rows.address
        layers_in_c = (ctypes.c_void_p * len(layers))(*[one.address for one in layers])
        kvs_in_c, streams = _kvs_in_c(kvs), list[Tensor]()
        for start, end in pairwise((0, *ends, len(layers))):
            out = torch.empty_like(x)
            self._library.decoder_layers(
                ctypes.byref(layers_in_c, start * ctypes.sizeof(ctypes.c_void_p)),
                ctypes.byref(kvs_in_c, start * ctypes.sizeof(_KvInC)),
                end - start,
                ctypes.addressof(in_c),
                x.data_ptr(),
                None if read is None else read.data_ptr(),
                out.data_ptr(),
            )
            x, read = out, None
            streams.append(out)
        return streams

    def _fits(self, x: Tensor, kvs: Sequence[FusedKV], read: Tensor | None) -> bool:
        """Whether C takes rows for caches; where nothing else is read, x must be as wide."""
        read = x if read is None else read
        if read.dtype != x.dtype or read.shape[1] != self.reads:
            return False
        cache, scratch = kvs[0]
        return fits(self._library, x, cache) and (
            scratch is None or fits(self._library, x, scratch)
        )


def _rows_in_c(cos: Tensor, sin: Tensor, rows: FusedRows, metadata: ctypes.Structure) -> _RowsInC:
    """Convert rows; the result refers to their tensors."""
    slots, nodes, mask = rows.slot_mapping, rows.node_rows, rows.mask
    slots = None if slots is None else slots.contiguous()
    nodes = None if nodes is None else nodes.contiguous()
    if mask is not None and mask.stride(2) != 1:
        mask = mask.contiguous()
    fields = _RowsInC(
        cos.data_ptr(),
        sin.data_ptr(),
        None if slots is None else slots.data_ptr(),
        None if nodes is None else nodes.data_ptr(),
        ctypes.addressof(metadata),
        None if mask is None else mask.data_ptr(),
        *((0, 0, 0) if mask is None else (*mask.stride()[:2], mask.shape[2])),
        len(cos),
        rows.scratch_rows,
        rows.first,
    )
    fields.held = cos, sin, slots, nodes, mask, metadata
    return fields


def _kvs_in_c(kvs: Sequence[FusedKV]) -> ctypes.Array[_KvInC]:
    fields = (_KvInC * len(kvs))()
    for field, (cache, scratch) in zip(fields, kvs, strict=True):
        field.k_pool, field.v_pool = cache.k.data_ptr(), cache.v.data_ptr()
        if scratch is not None:
            field.k_scratch, field.v_scratch = scratch.k.data_ptr(), scratch.v.data_ptr()
    return fields


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


def _low_rank_of(layer: LayerLowRank | None) -> Sequence[LowRankMaps | None]:
    """Return the low-rank maps in the order of the maps in C."""
    return (None,) * 4 if layer is None else (layer.qkv, layer.output, layer.gate_up, layer.down)


def _map_in_c(part: MapPart, low_rank: LowRankMaps | None) -> _MapInC:
    assert isinstance(part.weight, PackedWeight)
    return _MapInC(
        part.weight.address,
        None if part.bias is None else part.bias.data_ptr(),
        None if low_rank is None else low_rank.address,
    )
