"""Launcher of low-rank maps of sorted rows."""

from torch import Tensor

from specdecode_kernels.cpu.library import Library
from specdecode_kernels.low_rank import LowRankMaps, LowRankRows


def add_low_rank(
    library: Library, out: Tensor, x: Tensor, maps: LowRankMaps, rows: LowRankRows
) -> Tensor:
    """Launch on packed maps, which a backend in C packs all."""
    assert rows.num_rows == len(out), "C would write after the rows"
    if x.stride(1) != 1:
        x = x.contiguous()
    library.add_low_rank(
        maps.address,
        *(out.shape[1], x.shape[1], rows.address),
        *(x.data_ptr(), x.stride(0), out.data_ptr()),
    )
    return out
