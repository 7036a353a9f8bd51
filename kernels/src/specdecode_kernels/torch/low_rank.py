"""Low-rank maps of sorted rows, each as its row would get it alone."""

from torch import Tensor

from specdecode_kernels.low_rank import LowRankFactors, LowRankMaps, LowRankRows
from specdecode_kernels.torch.linear import linear


def add_low_rank(out: Tensor, x: Tensor, maps: LowRankMaps, rows: LowRankRows) -> Tensor:
    """Add to out [rows, outputs] what the maps of its rows give for x [rows, inputs], in place."""
    for slot, first, count in rows.groups.tolist():
        one = maps.by_slot[slot]
        if one is None:
            continue
        assert isinstance(one, LowRankFactors)
        own, dtype = rows.rows[first : first + count], one.a.dtype
        added = linear(linear(x[own].to(dtype), one.a, None), one.b, None)
        out[own] = (out[own].to(dtype) + added).to(out.dtype)
    return out
