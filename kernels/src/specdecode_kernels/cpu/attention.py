"""Launchers of attention and of the writing of the KV cache, and their arguments in C's form."""

import ctypes
from dataclasses import replace
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from specdecode_kernels.backend import Backend
from specdecode_kernels.cpu.layers import with_heads_together
from specdecode_kernels.cpu.library import Library
from specdecode_kernels.cpu.loading import load_library
from specdecode_kernels.metadata import (
    DEFAULT_ATTENTION,
    AttentionMetadata,
    AttentionParams,
    LayerKV,
    TreeKV,
)
from specdecode_kernels.torch import attention as reference
from specdecode_kernels.torch import kv_cache


class _Metadata(ctypes.Structure):
    """`struct metadata` of attend.c; `held` is what it points into."""

    _fields_ = (
        ("pages", ctypes.c_void_p),
        ("starts", ctypes.c_void_p),
        ("kv_lens", ctypes.c_void_p),
        ("batch", ctypes.c_int64),
        ("page_columns", ctypes.c_int64),
        ("page_size", ctypes.c_int64),
        ("most", ctypes.c_int64),
    )
    held: tuple[object, ...]


class _TreeKV(ctypes.Structure):
    """`struct tree_kv` of attend.c; `held` are the tensors that it points into."""

    _fields_ = (
        ("k", ctypes.c_void_p),
        ("v", ctypes.c_void_p),
        ("mask", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("k_batch_stride", ctypes.c_int64),
        ("k_row_stride", ctypes.c_int64),
        ("v_batch_stride", ctypes.c_int64),
        ("v_row_stride", ctypes.c_int64),
        ("mask_batch_stride", ctypes.c_int64),
        ("mask_query_stride", ctypes.c_int64),
    )
    held: tuple[object, ...]


class _Params(ctypes.Structure):
    """`struct params` of attend.c; `held` is the tensor that it points into."""

    _fields_ = (
        ("window", ctypes.c_int64),
        ("chunk", ctypes.c_int64),
        ("sinks", ctypes.c_void_p),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
    )
    held: Tensor | None


def with_cpu_attention(backend: Backend, dtype: torch.dtype) -> Backend:
    """Replace attention and the writing of the KV cache; see `with_cpu_ops`."""
    library = load_library(dtype)
    store = partial(store_kv, library)
    return replace(
        backend,
        attention="cpu",
        store_kv=store,
        rope_and_store_kv=kv_cache.rope_then_store(backend.apply_rope, store),
        attend=CpuAttention(library).attend,
    )


class MetadataInC:
    """The metadata of the current forward in C's form: every layer brings the same."""

    def __init__(self) -> None:
        self._latest: AttentionMetadata | None = None
        self._in_c: _Metadata | None = None

    def of(self, metadata: AttentionMetadata) -> _Metadata | None:
        """Convert metadata, or return None if it is not laid out row by row."""
        if self._latest is not metadata:
            self._latest, self._in_c = metadata, _metadata_in_c(metadata)
        return self._in_c


class CpuAttention:
    """Attention of one model; keeps its layers' parameters in C's form.

    A row's bits depend on the keys that it sees and their order alone.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._metadata = MetadataInC()
        self._params: dict[tuple[AttentionParams, int], _Params] = {}

    def attend(
        self,
        q: Tensor,
        kv: LayerKV,
        metadata: AttentionMetadata,
        tree_kv: TreeKV | None,
        params: AttentionParams = DEFAULT_ATTENTION,
    ) -> Tensor:
        """Launch on a contiguous cache of the library's type; torch attends otherwise."""
        in_c = self._metadata.of(metadata)
        if in_c is None or not fits(self._library, q, kv):
            return reference.attend(q, kv, metadata, tree_kv, params)
        q = with_heads_together(q)
        rows, q_heads, k_dim = q.shape
        kv_heads, v_dim = kv.v.shape[1:]
        out = torch.empty((rows, q_heads, v_dim), dtype=q.dtype)
        tree = None if tree_kv is None else _tree_kv_in_c(tree_kv)
        self._library.attend(
            ctypes.addressof(in_c),
            None if tree is None else ctypes.addressof(tree),
            q.data_ptr(),
            q.stride(0),
            kv.k.data_ptr(),
            kv.v.data_ptr(),
            out.data_ptr(),
            q_heads,
            kv_heads,
            k_dim,
            v_dim,
            ctypes.addressof(self._params_in_c(params, k_dim)),
        )
        return out

    def _params_in_c(self, params: AttentionParams, head_dim: int) -> _Params:
        key = (params, head_dim)
        if key not in self._params:
            self._params[key] = params_in_c(params, head_dim)
        return self._params[key]


def store_kv(library: Library, kv: LayerKV, slot_mapping: Tensor, k: Tensor, v: Tensor) -> None:
    """Copy rows to a contiguous cache of their type; torch writes otherwise."""
    if not fits(library, k, kv) or v.dtype != k.dtype:
        kv_cache.store_kv(kv, slot_mapping, k, v)
        return
    k, v = with_heads_together(k), with_heads_together(v)
    slot_mapping = slot_mapping.contiguous()
    library.store_kv(
        kv.k.data_ptr(),
        kv.v.data_ptr(),
        slot_mapping.data_ptr(),
        k.data_ptr(),
        k.stride(0),
        v.data_ptr(),
        v.stride(0),
        k.shape[0],
        *(rows.shape[1] * rows.shape[2] for rows in (kv.k, kv.v)),
    )


def fits(library: Library, rows: Tensor, kv: LayerKV) -> bool:
    """Whether C takes a cache for rows of this type."""
    has_rows = kv.k.is_contiguous() and (kv.is_latent or kv.v.is_contiguous())
    return rows.dtype == kv.k.dtype == library.dtype and has_rows


def _metadata_in_c(metadata: AttentionMetadata) -> _Metadata | None:
    """Convert metadata for all layers of a forward; None if it is not laid out row by row.

    Its tensors may be refilled afterwards, so what C could not follow there is not copied.
    """
    pages, kv_lens = metadata.page_table, metadata.kv_lens
    if (pages.shape[1] > 1 and pages.stride(1) != 1) or not kv_lens.is_contiguous():
        return None
    count = len(metadata.qo_lens)
    starts = (ctypes.c_int64 * (count + 1))(*accumulate(metadata.qo_lens, initial=0))
    fields = _Metadata(
        pages.data_ptr(),
        ctypes.addressof(starts),
        kv_lens.data_ptr(),
        count,
        pages.stride(0),
        metadata.page_size,
        metadata.max_kv_len,
    )
    fields.held = (metadata, starts)
    return fields


def _tree_kv_in_c(tree_kv: TreeKV) -> _TreeKV:
    k, v = (x if _has_rows(x) else x.contiguous() for x in tree_kv[:2])
    mask = tree_kv.tree_mask
    if mask.stride(2) != 1:
        mask = mask.contiguous()
    pointers = (k.data_ptr(), v.data_ptr(), mask.data_ptr())
    strides = (*k.stride()[:2], *v.stride()[:2], *mask.stride()[:2])
    fields = _TreeKV(*pointers, k.shape[1], *strides)
    fields.held = (k, v, mask)
    return fields


def _has_rows(x: Tensor) -> bool:
    """Whether the heads of x [batch, rows, kv_heads, dim] lie one after the other."""
    return x.stride(3) == 1 and (x.shape[2] == 1 or x.stride(2) == x.shape[3])


def params_in_c(params: AttentionParams, head_dim: int) -> _Params:
    """Convert parameters; the result refers to the sinks."""
    sinks = None if params.sinks is None else params.sinks.contiguous()
    fields = _Params(
        params.sliding_window or 0,
        params.attention_chunk_size or 0,
        None if sinks is None else sinks.data_ptr(),
        params.scale_of(head_dim),
        params.logit_softcap or 0.0,
    )
    fields.held = sinks
    return fields
