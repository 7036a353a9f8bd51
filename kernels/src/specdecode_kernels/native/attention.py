"""The launcher of attention, and layouts and tails in the form in which attend.c takes them."""

import ctypes
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from specdecode_kernels import launches
from specdecode_kernels.layout import AttentionLayout, Tail
from specdecode_kernels.native.elementwise import with_heads_together
from specdecode_kernels.native.library import library


class _Layout(ctypes.Structure):
    """`struct layout` of attend.c."""

    _fields_ = (
        ("pages", ctypes.c_void_p),
        ("starts", ctypes.c_void_p),
        ("visible", ctypes.c_void_p),
        ("batch", ctypes.c_int64),
        ("page_columns", ctypes.c_int64),
        ("page_size", ctypes.c_int64),
        ("most", ctypes.c_int64),
    )


class _Tail(ctypes.Structure):
    """`struct tail` of attend.c."""

    _fields_ = (
        ("k", ctypes.c_void_p),
        ("v", ctypes.c_void_p),
        ("mask", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("batch_stride", ctypes.c_int64),
        ("row_stride", ctypes.c_int64),
        ("mask_batch_stride", ctypes.c_int64),
        ("mask_query_stride", ctypes.c_int64),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Handed:
    """A layout or a tail in C's form, and what has to live as long."""

    fields: ctypes.Structure
    held: tuple[object, ...]

    @property
    def address(self) -> int:
        """Where C finds it."""
        return ctypes.addressof(self.fields)


def hand_over(layout: AttentionLayout) -> Handed | None:
    """Say a layout in C's form, for all layers of a pass; None if it is not laid out row by row.

    Its tensors may be filled anew afterwards, so what C could not follow there is not copied.
    """
    pages, visible = layout.page_table, layout.visible
    if (pages.shape[1] > 1 and pages.stride(1) != 1) or not visible.is_contiguous():
        return None
    starts = torch.tensor((0, *layout.query_lens)).cumsum(0)
    fields = _Layout(
        pages.data_ptr(),
        starts.data_ptr(),
        visible.data_ptr(),
        len(layout.query_lens),
        pages.stride(0),
        layout.page_size,
        layout.max_visible,
    )
    return Handed(fields, (layout, starts))


def attend(q: Tensor, k_pool: Tensor, v_pool: Tensor, layout: Handed, tail: Tail | None) -> Tensor:
    """Attend from q [rows, q_heads, dim] to contiguous pools of its type, and to a tail."""
    launches.count("attend", "native")
    q = with_heads_together(q)
    out = torch.empty(q.shape, dtype=q.dtype)
    beyond = None if tail is None else _hand_over_tail(tail)
    library(q.dtype).attend(
        layout.address,
        None if beyond is None else beyond.address,
        q.data_ptr(),
        q.stride(0),
        k_pool.data_ptr(),
        v_pool.data_ptr(),
        out.data_ptr(),
        q.shape[1],
        *k_pool.shape[1:],
        1.0 / math.sqrt(q.shape[2]),
    )
    return out


def _hand_over_tail(tail: Tail) -> Handed:
    k, v, mask = tail.k, tail.v, tail.mask
    if k.stride()[2:] != (k.shape[3], 1) or v.stride() != k.stride():
        k, v = k.contiguous(), v.contiguous()
    if mask.stride(2) != 1:
        mask = mask.contiguous()
    pointers = (k.data_ptr(), v.data_ptr(), mask.data_ptr())
    fields = _Tail(*pointers, k.shape[1], *k.stride()[:2], *mask.stride()[:2])
    return Handed(fields, (k, v, mask))
