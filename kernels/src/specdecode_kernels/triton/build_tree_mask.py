"""Depths and ancestry of the nodes of a tree: every node walks up to the root."""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 16


@triton.jit
def build_tree_mask_kernel(
    parents_ptr,
    depths_ptr,
    ancestry_ptr,
    stride_parents,
    nodes,
    MAX_DEPTH: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    tree = tl.program_id(0).to(tl.int64)
    own = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = own < nodes
    columns = tl.arange(0, BLOCK)
    parents_ptr += tree * stride_parents
    at = own
    seen = at[:, None] == columns[None, :]
    depths = tl.zeros([TILE], tl.int64)
    for _ in range(MAX_DEPTH):
        depths += (inside & (at != 0)).to(tl.int64)
        at = tl.load(parents_ptr + at, mask=inside, other=0).to(tl.int32)
        seen = seen | (at[:, None] == columns[None, :])
    tl.store(depths_ptr + tree * nodes + own, depths, mask=inside)
    rows_ptr = ancestry_ptr + (tree * nodes + own)[:, None] * nodes + columns[None, :]
    tl.store(rows_ptr, seen.to(tl.int8), mask=inside[:, None] & (columns < nodes)[None, :])


def build_tree_mask(parents: Tensor, max_depth: int) -> tuple[Tensor, Tensor]:
    batch, nodes = parents.shape
    parents = parents if parents.stride(1) == 1 else parents.contiguous()
    depths = torch.empty((batch, nodes), dtype=torch.int64, device=parents.device)
    ancestry = torch.empty((batch, nodes, nodes), dtype=torch.bool, device=parents.device)
    if batch:
        build_tree_mask_kernel[(batch, triton.cdiv(nodes, TILE))](
            parents,
            depths,
            ancestry.view(torch.int8),
            parents.stride(0),
            nodes,
            MAX_DEPTH=max_depth,
            TILE=TILE,
            BLOCK=triton.next_power_of_2(nodes),
        )
    return depths, ancestry
