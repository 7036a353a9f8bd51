"""How far each chain agrees with the target: one program per request."""

import torch
import triton
import triton.language as tl
from torch import Tensor

MIN_BLOCK = 16
"""One kernel for all short chains."""


@triton.jit(do_not_specialize=("stride_choices", "stride_drafted", "drafted_count"))
def verify_chain_kernel(
    choices_ptr,
    drafted_ptr,
    accepted_ptr,
    stride_choices,
    stride_drafted,
    drafted_count,
    BLOCK: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    steps = tl.arange(0, BLOCK)
    inside = steps < drafted_count
    choices_ptr += request * stride_choices
    chosen = tl.load(choices_ptr + steps, mask=inside, other=0)
    drafted = tl.load(drafted_ptr + request * stride_drafted + steps, mask=inside, other=0)
    accepted = tl.min(tl.where(inside & (chosen != drafted), steps, drafted_count))
    tl.store(accepted_ptr + request, accepted.to(tl.int64))


def verify_chain(choices: Tensor, drafted: Tensor) -> Tensor:
    choices, drafted = (x if x.stride(1) == 1 else x.contiguous() for x in (choices, drafted))
    batch, count = drafted.shape
    accepted = torch.empty(batch, dtype=torch.int64, device=choices.device)
    if batch:
        verify_chain_kernel[(batch,)](
            choices,
            drafted,
            accepted,
            choices.stride(0),
            drafted.stride(0),
            count,
            BLOCK=max(MIN_BLOCK, triton.next_power_of_2(count)),
            num_warps=1,
        )
    return accepted
