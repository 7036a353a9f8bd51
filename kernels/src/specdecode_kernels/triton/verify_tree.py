"""Down each tree as far as the draft agrees: one program per request, one scan per level.

All nodes are compared at once with the node at hand and the token chosen there. Lists of children
would only be followed one dependent load at a time, so no tree carries them.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit(
    do_not_specialize=("stride_choices", "stride_drafted", "stride_parents", "nodes", "path_length")
)
def verify_tree_kernel(
    choices_ptr,
    drafted_ptr,
    parents_ptr,
    path_ptr,
    accepted_ptr,
    bonus_ptr,
    stride_choices,
    stride_drafted,
    stride_parents,
    nodes,
    path_length,
    BLOCK: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    choices_ptr += request * stride_choices
    path_ptr += request * path_length
    own = tl.arange(0, BLOCK)
    drafted_here = (own > 0) & (own < nodes)
    drafted = tl.load(drafted_ptr + request * stride_drafted + own - 1, mask=drafted_here, other=0)
    parents = tl.load(parents_ptr + request * stride_parents + own, mask=drafted_here, other=0)
    node = tl.zeros([], tl.int32)
    accepted = tl.zeros([], tl.int64)
    tl.store(path_ptr, accepted)
    for step in range(1, path_length):
        wanted = tl.load(choices_ptr + node)
        agrees = drafted_here & (parents == node) & (drafted == wanted)
        child = tl.min(tl.where(agrees, own, BLOCK))
        accepted += (child < BLOCK).to(tl.int64)
        node = tl.where(child < BLOCK, child, node)
        tl.store(path_ptr + step, node.to(tl.int64))
    tl.store(accepted_ptr + request, accepted)
    tl.store(bonus_ptr + request, tl.load(choices_ptr + node))


def verify_tree(
    choices: Tensor, drafted: Tensor, parents: Tensor, path_length: int
) -> tuple[Tensor, Tensor, Tensor]:
    choices, drafted, parents = (
        x if x.stride(1) == 1 else x.contiguous() for x in (choices, drafted, parents)
    )
    batch, nodes = choices.shape
    path = torch.empty((batch, path_length), dtype=torch.int64, device=choices.device)
    accepted = torch.empty(batch, dtype=torch.int64, device=choices.device)
    bonus = torch.empty_like(accepted)
    if batch:
        verify_tree_kernel[(batch,)](
            choices,
            drafted,
            parents,
            path,
            accepted,
            bonus,
            choices.stride(0),
            drafted.stride(0),
            parents.stride(0),
            nodes,
            path_length,
            BLOCK=triton.next_power_of_2(nodes),
            num_warps=1,
        )
    return path, accepted, bonus
