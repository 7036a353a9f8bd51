"""Three penalties and a bias in one pass over the logits of every node."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdecode_kernels.metadata import DraftedNodes, PenaltyParamsBatch

BLOCK = 2048


@triton.jit(
    do_not_specialize=(
        *("states_ptr", "numbers_ptr", "drafted_ptr", "parents_ptr", "stride_drafted"),
        *("stride_parents", "nodes", "max_depth"),
    )
)
def apply_penalties_kernel(
    logits,  # pointer and strides
    out_ptr,
    counts_ptr,
    in_prompt_ptr,
    bias_ptr,
    states_ptr,
    numbers_ptr,
    drafted_ptr,
    parents_ptr,
    stride_drafted,
    stride_parents,
    stride_state,
    nodes,
    vocab,
    max_depth,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    request, node = row // nodes, row % nodes
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = tokens < vocab
    row_ptr = logits[0] + request * logits[1] + node * logits[2]
    values = tl.load(row_ptr + tokens, mask=inside, other=0.0)
    state = tl.load(states_ptr + request)
    if state >= 0:
        at = state * stride_state + tokens
        counts = tl.load(counts_ptr + at, mask=inside, other=0.0)
        if drafted_ptr is not None:
            above = node
            for _ in range(max_depth):
                token_ptr = drafted_ptr + request * stride_drafted + above - 1
                token = tl.load(token_ptr, mask=above > 0, other=-1)
                counts += (tokens == token).to(tl.float32)
                if parents_ptr is not None:
                    above = tl.load(parents_ptr + request * stride_parents + above)
                else:
                    above = tl.maximum(above - 1, 0)
        in_prompt = tl.load(in_prompt_ptr + at, mask=inside, other=0) != 0
        repetition = tl.load(numbers_ptr + request * 3).to(tl.float32)
        presence = tl.load(numbers_ptr + request * 3 + 1).to(tl.float32)
        frequency = tl.load(numbers_ptr + request * 3 + 2).to(tl.float32)
        is_output = counts > 0
        scaled = tl.where(values > 0, tl.div_rn(values, repetition), values * repetition)
        values = tl.where(is_output | in_prompt, scaled, values)
        values = values - presence * is_output.to(tl.float32)
        values = values - frequency * counts
        values = values + tl.load(bias_ptr + at, mask=inside, other=0.0)
    tl.store(out_ptr + row * vocab + tokens, values, mask=inside)


def apply_penalties(
    logits: Tensor, params: PenaltyParamsBatch, drafted: DraftedNodes | None
) -> Tensor:
    logits = logits if logits.stride(2) == 1 else logits.contiguous()
    result = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    if not result.numel():
        return result
    batch, nodes, vocab = logits.shape
    tokens = None if drafted is None else drafted.tokens.contiguous()
    parents = None
    if drafted is not None and drafted.parents is not None:
        parents = drafted.parents.contiguous()
    apply_penalties_kernel[(batch * nodes, triton.cdiv(vocab, BLOCK))](
        (logits, *logits.stride()[:2]),
        result,
        params.counts,
        params.in_prompt.view(torch.int8),
        params.bias,
        params.states,
        params.numbers,
        tokens,
        parents,
        0 if tokens is None else tokens.stride(0),
        0 if parents is None else parents.stride(0),
        params.counts.stride(0),
        nodes,
        vocab,
        0 if drafted is None else drafted.max_depth,
        BLOCK=BLOCK,
    )
    return result
