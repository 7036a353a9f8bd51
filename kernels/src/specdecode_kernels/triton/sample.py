"""Temperature, noise and the likeliest token; filters where a request has any.

Rows are cut into parts of one size, whatever the batch, so that a row's sums never depend on it. A
program holds one part in registers: it reads the row once. A second, tiny launch picks the winner.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdecode_kernels.metadata import SamplingParamsBatch
from specdecode_kernels.triton.candidates import Found, candidates_of_parts_kernel
from specdecode_kernels.triton.filters import keep_first
from specdecode_kernels.triton.likelihood import NO_KEY

PART = 4096
"""Tokens of a row that one program holds."""
PART_CANDIDATES = 32
"""Most candidates that a part reports: of equal logits it has 9 on average, of others fewer."""


@triton.jit(do_not_specialize=("parts",))
def best_of_parts_kernel(best_ptr, tokens_ptr, out_ptr, parts, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    inside = lanes < parts
    best = tl.load(best_ptr + row * parts + lanes, mask=inside, other=NO_KEY)
    tokens = tl.load(tokens_ptr + row * parts + lanes, mask=inside, other=2**31 - 1)
    winner = tl.min(tl.where(best == tl.max(best), tokens, 2**31 - 1))
    tl.store(out_ptr + row, winner.to(tl.int64))


def sample(
    logits: Tensor, params: SamplingParamsBatch | None, positions: Tensor, ids: Tensor | None
) -> Tensor:
    logits = logits if logits.stride(2) == 1 else logits.contiguous()
    batch, nodes, vocab = logits.shape
    chosen = torch.empty((batch, nodes), dtype=torch.int64, device=logits.device)
    if not chosen.numel():
        return chosen
    part = min(PART, max(128, triton.next_power_of_2(vocab)))
    parts = triton.cdiv(vocab, part)
    has_filters = params is not None and params.is_filtered
    most = PART_CANDIDATES if has_filters else 1
    has_digits = params is not None and has_filters and params.has_top_k_and_top_p
    found = Found.empty(batch * nodes, parts, most, logits.device, has_digits=has_digits)
    sampling = None if params is None else tuple(x.contiguous() for x in params.tensors())
    positions, ids = positions.contiguous(), None if ids is None else ids.contiguous()
    candidates_of_parts_kernel[(batch * nodes, parts)](
        (logits, *logits.stride()[:2]),
        *(sampling or (None,) * 5),
        positions,
        ids,
        tuple(found),
        nodes,
        vocab,
        IS_FILTERED=has_filters,
        MOST=most,
        PART=part,
        num_warps=8,
        maxnreg=128 if has_digits else 80 if has_filters else 64,
    )
    if sampling is not None and has_filters:
        keep_first(logits, sampling, positions, ids, found, part, chosen)
        return chosen
    block = triton.next_power_of_2(parts)
    best_of_parts_kernel[(batch * nodes,)](
        found.noisy, found.tokens, chosen, parts, BLOCK=block, num_warps=1
    )
    return chosen
