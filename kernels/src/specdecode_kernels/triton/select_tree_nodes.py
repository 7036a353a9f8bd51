"""The best candidates of a draft tree, the best first, without a sort.

A candidate's rank is the number of those that score higher, or the same and stand before it: what a
stable sort would give, and every candidate finds its own. It is the candidate's place among the
nodes, and its parent's place is looked up the same way.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdecode_kernels.triton.tiles import warps_for

TILE = 128
STEP = 32


@triton.jit
def _rank_kernel(
    scores_ptr,
    ranks_ptr,
    stride_scores,
    CANDIDATES: tl.constexpr,
    TILE: tl.constexpr,
    STEP: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    own = tl.program_id(1) * TILE + tl.arange(0, TILE)
    scores_ptr += row * stride_scores
    mine = tl.load(scores_ptr + own, mask=own < CANDIDATES, other=0.0)[:, None]
    rank = tl.zeros([TILE], tl.int32)
    for start in range(0, CANDIDATES, STEP):
        others = start + tl.arange(0, STEP)
        theirs = tl.load(scores_ptr + others, mask=others < CANDIDATES, other=0.0)[None, :]
        # Were all scores not numbers, the ranks would be the candidates' indices.
        earlier = ((theirs < mine) == 0) & (others[None, :] < own[:, None])
        before = ((theirs > mine) | earlier) & (others < CANDIDATES)[None, :]
        rank += tl.sum(before.to(tl.int32), axis=1)
    tl.store(ranks_ptr + row * CANDIDATES + own, rank, mask=own < CANDIDATES)


@triton.jit(do_not_specialize=("wanted",))
def _place_kernel(
    ranks_ptr,
    tokens_ptr,
    parents_ptr,
    out_tokens_ptr,
    out_parents_ptr,
    stride_tokens,
    stride_parents,
    candidates,
    wanted,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    own = tl.arange(0, BLOCK)
    inside = own < candidates
    ranks = tl.load(ranks_ptr + row * candidates + own, mask=inside, other=BLOCK)
    parents = tl.load(parents_ptr + row * stride_parents + own, mask=inside, other=-1)
    parents = parents.to(tl.int32)
    above = tl.gather(ranks, tl.maximum(parents, 0), 0) + 1
    above = tl.where(parents < 0, 0, above).to(tl.int64)
    tokens = tl.load(tokens_ptr + row * stride_tokens + own, mask=inside, other=0)
    written = ranks < wanted
    tl.store(out_tokens_ptr + row * wanted + ranks, tokens, mask=written)
    out_parents_ptr += row * (wanted + 1)
    tl.store(out_parents_ptr + 1 + ranks, above, mask=written)
    tl.store(out_parents_ptr, tl.zeros([], tl.int64))


def select_tree_nodes(
    scores: Tensor, tokens: Tensor, parents: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    batch, candidates = scores.shape
    device = scores.device
    out_tokens = torch.empty((batch, count), dtype=torch.int64, device=device)
    out_parents = torch.empty((batch, count + 1), dtype=torch.int64, device=device)
    if not batch:
        return out_tokens, out_parents
    scores, tokens, parents = (
        x if x.stride(1) == 1 else x.contiguous() for x in (scores, tokens, parents)
    )
    ranks = torch.empty((batch, candidates), dtype=torch.int32, device=device)
    _rank_kernel[(batch, triton.cdiv(candidates, TILE))](
        scores, ranks, scores.stride(0), CANDIDATES=candidates, TILE=TILE, STEP=STEP
    )
    block = triton.next_power_of_2(candidates)
    _place_kernel[(batch,)](
        ranks,
        tokens,
        parents,
        out_tokens,
        out_parents,
        tokens.stride(0),
        parents.stride(0),
        candidates,
        count,
        BLOCK=block,
        num_warps=warps_for(block),
    )
    return out_tokens, out_parents
