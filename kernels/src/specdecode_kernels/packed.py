"""Linear maps on a CPU by oneDNN, with weights laid out once in the order that it reads them.

Plain products read a matrix in an order that reaches a part of the memory's rate, and in float32
take two to three times as long for two rows as for one. Packed ones reach most of it, and two to
eight rows cost little more than one (docs/decisions/0015). The ops behind this are torch's own for
compiled models; they are private, so everything about them stands here, and whoever packs asks
`obstacle` first.

A row must come out the same to the bit whatever rows it is computed with. How oneDNN sums depends
on the number of rows, so only numbers are used that `pack` has tried on this machine: others are
filled up to the next one, more than the largest are cut.
"""

import os
from bisect import bisect_left
from dataclasses import dataclass

import torch
from torch import Tensor

VARIABLE = "SPECDECODE_LINEARS"
"""Set to `plain` it keeps every weight as it is: to look for a fault, or to change weights."""

ROW_COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 48, 64, 96, 128)
"""Numbers of rows that a packed map may be run with."""

_PROBED = 2  # rows that are compared, and the fewest that every row count is compared with
_DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A weight in oneDNN's own layout, and the row counts that give the same bits."""

    blocks: Tensor  # opaque, [outputs, inputs]
    row_counts: tuple[int, ...]  # ascending

    @property
    def shape(self) -> torch.Size:
        """Outputs and inputs."""
        return self.blocks.shape

    @property
    def dtype(self) -> torch.dtype:
        """Type of the entries."""
        return self.blocks.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of the entries; filling up of blocks is not counted."""
        return self.blocks.numel() * self.dtype.itemsize

    def plain(self) -> Tensor:
        """Lay the weight out anew as an ordinary tensor [outputs, inputs]."""
        return self.blocks.to_dense()


def obstacle(device: torch.device, dtype: torch.dtype) -> str | None:
    """Say what keeps weights from being packed, or nothing."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", "plain"):
        raise ValueError(f"{VARIABLE}={wanted!r} is unknown: set plain, or leave it out")
    if wanted == "plain":
        return f"{VARIABLE} is plain"
    if device.type != "cpu":
        return f"packing is for a CPU, not {device}"
    if dtype not in _DTYPES:
        return f"float32 and bfloat16 can be packed, not {dtype}"
    if not _has_ops():
        return "this build of torch has no oneDNN ops for packed weights"
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return "this CPU has no instructions for bfloat16"
    return None


def pack(weight: Tensor) -> PackedWeight | None:
    """Pack a weight [outputs, inputs]; None if its sums depend on the number of rows.

    They are tried with every row count. Some shapes take another path for a single row; then two
    are computed in its place, at the same price.
    """
    blocks = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    generator = torch.Generator().manual_seed(0)
    probe = torch.randn(ROW_COUNTS[-1], weight.shape[1], generator=generator).to(weight.dtype)
    wanted = _run(blocks, probe[:_PROBED], None)
    same = tuple(
        count
        for count in ROW_COUNTS
        if torch.equal(_run(blocks, probe[:count], None)[:_PROBED], wanted[:count])
    )
    is_invariant = same[-len(ROW_COUNTS) + 1 :] == ROW_COUNTS[1:]
    return PackedWeight(blocks, same) if is_invariant else None


def map_rows(x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
    """Map x [rows, inputs] to [rows, outputs]."""
    rows, counts = x.shape[0], weight.row_counts
    if rows > counts[-1]:
        return torch.cat([map_rows(part, weight, bias) for part in torch.split(x, counts[-1])])
    count = counts[bisect_left(counts, rows)]
    if count == rows:
        return _run(weight.blocks, x, bias)
    if not rows:
        return x.new_empty(0, weight.shape[0])
    # Filled up with rows that are there: what they hold is thrown away.
    return _run(weight.blocks, torch.cat((x, x[: count - rows])), bias)[:rows]


def _run(blocks: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
    mapped: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, blocks, bias, "none", [], "")
    return mapped


def _has_ops() -> bool:
    ops = torch.ops.mkldnn
    has_both = hasattr(ops, "_linear_pointwise") and hasattr(ops, "_reorder_linear_weight")
    return has_both and bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
