"""Checks the arguments of `add_low_rank`."""

import torch
from torch import Tensor

from specdecode_kernels.low_rank import LowRankFactors, LowRankMaps, LowRankRows
from specdecode_kernels.packed_weights import BLOCK


def check_add_low_rank(out: Tensor, x: Tensor, maps: LowRankMaps, rows: LowRankRows) -> None:
    """Raise a ValueError for shapes that do not fit, or rows and slots that do not exist."""
    if out.dim() != 2 or x.dim() != 2 or len(out) != len(x) or out.dtype != x.dtype:
        raise ValueError(
            f"add_low_rank: out {list(out.shape)} {out.dtype} must have the rows and the type of "
            f"x {list(x.shape)} {x.dtype}"
        )
    if not out.is_contiguous():
        raise ValueError("add_low_rank: out must be contiguous")
    places, groups = rows.rows.tolist(), rows.groups.tolist()
    if rows.rows.dtype != torch.int64 or rows.groups.dtype != torch.int64:
        raise ValueError("add_low_rank: rows and groups must be i64")
    if rows.num_rows != len(out):
        raise ValueError(
            f"add_low_rank: {len(out)} rows, and those with maps are of {rows.num_rows}"
        )
    if len({*places}) != len(places) or not {*places} <= {*range(len(out))}:
        raise ValueError(f"add_low_rank: rows {places} must differ and be below {len(out)}")
    ends = [0, *(first + count for _, first, count in groups)]
    if [first for _, first, _ in groups] != ends[:-1] or ends[-1] != len(places):
        raise ValueError(f"add_low_rank: groups {groups} must divide {len(places)} rows in order")
    for slot, _, _ in groups:
        if not 0 <= slot < len(maps.by_slot):
            raise ValueError(f"add_low_rank: slot {slot} is not below {len(maps.by_slot)}")
        _check_map(maps, slot, out.shape[1], x.shape[1])


def _check_map(maps: LowRankMaps, slot: int, outputs: int, inputs: int) -> None:
    one = maps.by_slot[slot]
    if one is None:
        return
    if isinstance(one, LowRankFactors):
        fits = one.a.shape[1] == inputs and len(one.b) == outputs
    else:
        fits = one.a.shape[1] == inputs and len(one.blocks) == -(-outputs // BLOCK)
    if not fits:
        raise ValueError(f"add_low_rank: the map of slot {slot} is not of {inputs} to {outputs}")
