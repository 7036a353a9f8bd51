"""Packs weights in the order in which kernels in C read them."""

import ctypes
import math

import torch
from torch import Tensor

from specdecode_kernels.cpu.library import Library
from specdecode_kernels.cpu.memory import WeightMemory
from specdecode_kernels.packed_weights import (
    BLOCK,
    FORMATS,
    SCALES,
    SUM_BLOCK,
    SUM_ORDERS,
    PackedLayout,
    PackedWeight,
    SumOrder,
)
from specdecode_kernels.weights import QuantizedTensor


class WeightInC(ctypes.Structure):
    """`struct weight` of linear.h; begins with its `struct layout`."""

    _fields_ = (
        ("format", ctypes.c_int64),
        ("group", ctypes.c_int64),
        ("scales", ctypes.c_int64),
        ("has_zeros", ctypes.c_int32),
        ("sums", ctypes.c_int32),
        ("blocks", ctypes.c_void_p),
        ("outputs", ctypes.c_int64),
        ("inputs", ctypes.c_int64),
        ("order", ctypes.c_void_p),
    )


RELEASED_BYTES = 8 << 20
"""Of a weight, how much is packed before its pages are released."""
MAX_GROUP = 128
"""Inputs of a group with sums in the order blocks32; `MOST_SPAN` of blocks32.h."""
_MEMORY = WeightMemory()


def pack_weight(
    library: Library,
    weight: Tensor | QuantizedTensor,
    release: bool = False,
    *,
    sums: SumOrder = "inputs",
) -> PackedWeight:
    """Pack one weight [outputs, inputs], or those of several experts one after the other.

    Args:
        release: give the pages of what was packed of a plain weight back to the kernel; its values
            are lost.
        sums: blocks32 is for rows of bfloat16 alone, and for groups of whole blocks.

    Raises:
        ValueError: groups have no whole blocks.
    """
    layout = _layout_of(weight)._replace(sums=SUM_ORDERS.index(sums))
    if layout.sums:
        _check_groups(layout)
    *leading, outputs, inputs = weight.shape
    shape = (*leading, -(-outputs // BLOCK), layout.block_bytes(inputs))
    blocks = _MEMORY.take(math.prod(shape), library.tuning).view(shape)
    each = blocks.view(math.prod(leading), *shape[-2:])
    order = None
    if isinstance(weight, QuantizedTensor):
        _pack_quantized(library, weight, layout, each)
        order = None if weight.order is None else weight.order.contiguous()
    else:
        _pack_plain(library, weight, layout, each, release=release and weight.is_contiguous())
        blocks = blocks.view(weight.dtype)
    fields = WeightInC(*layout, blocks.data_ptr(), outputs, inputs)
    if order is not None:
        fields.order = order.data_ptr()
    address = ctypes.addressof(fields)
    return PackedWeight(blocks, weight.shape, weight.dtype, layout, fields, address, order)


def _check_groups(layout: PackedLayout) -> None:
    """Raise unless blocks of 32 inputs end where groups do, or contain whole ones of NVFP4."""
    group = layout.group
    if not group:
        return
    if SCALES[layout.scales] == torch.float8_e4m3fn:
        fits, wanted = SUM_BLOCK % group == 0, f"divide {SUM_BLOCK}"
    else:
        fits = group % SUM_BLOCK == 0 and group <= MAX_GROUP
        wanted = f"be a multiple of {SUM_BLOCK} up to {MAX_GROUP}"
    if not fits:
        raise ValueError(
            f"weights with sums in the order blocks32 have groups of {group} inputs; these must "
            f"{wanted}: use the order inputs"
        )


def _pack_plain(
    library: Library, weight: Tensor, layout: PackedLayout, each: Tensor, *, release: bool
) -> None:
    outputs, inputs = weight.shape[-2:]
    for plain, blocks in zip(weight.contiguous().view(-1, outputs, inputs), each, strict=True):
        rows = max(RELEASED_BYTES // plain[0].nbytes // BLOCK, 1) * BLOCK if release else outputs
        for first in range(0, outputs, rows):
            part = plain[first : first + rows]
            fields = WeightInC(*layout, blocks[first // BLOCK :].data_ptr(), len(part), inputs)
            library.pack(ctypes.addressof(fields), part.data_ptr())
            if release:
                library.release_pages(part.data_ptr(), part.nbytes)


def _layout_of(weight: Tensor | QuantizedTensor) -> PackedLayout:
    if isinstance(weight, Tensor):
        return PackedLayout(0 if weight.dtype == torch.float32 else 1)
    form = weight.precision
    number = FORMATS.index(form.format)
    if not form.group:
        return PackedLayout(number, has_zeros=form.has_zeros)
    is_exact = form.scales == "float32" and torch.equal(
        weight.scales.bfloat16().float(), weight.scales
    )
    stored = torch.bfloat16 if is_exact else weight.scales.dtype
    return PackedLayout(number, form.group, SCALES.index(stored), form.has_zeros)


def _pack_quantized(
    library: Library, weight: QuantizedTensor, layout: PackedLayout, each: Tensor
) -> None:
    outputs, inputs = weight.shape[-2:]
    parts = [
        None if part is None else part.reshape(len(each), outputs, -1).contiguous()
        for part in (weight.values, weight.scales, weight.zeros, weight.factors)
    ]
    for number, blocks in enumerate(each):
        fields = WeightInC(*layout, blocks.data_ptr(), outputs, inputs)
        addresses = [None if part is None else part[number].data_ptr() for part in parts]
        library.pack_quantized(ctypes.addressof(fields), *addresses)
