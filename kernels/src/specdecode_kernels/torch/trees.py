"""Draft trees and chains: the nodes that stay, how far the target agrees, what is accepted."""

import torch
from torch import Tensor


def select_tree_nodes(
    scores: Tensor, tokens: Tensor, parents: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """Take the best by a stable sort, look their parents up."""
    best = torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :count]
    nodes = torch.arange(1, count + 1, device=scores.device).expand_as(best)
    node_of = torch.zeros_like(tokens).scatter(1, best, nodes)
    flat_parents = parents.gather(1, best)
    above = torch.where(flat_parents < 0, 0, node_of.gather(1, flat_parents.clamp(min=0)))
    return tokens.gather(1, best), torch.nn.functional.pad(above, (1, 0))


def build_tree_mask(parents: Tensor, max_depth: int) -> tuple[Tensor, Tensor]:
    """Let every node take over what its parent sees, once per level."""
    nodes = parents.shape[1]
    own = torch.eye(nodes, dtype=torch.bool, device=parents.device).expand(len(parents), -1, -1)
    ancestry = own
    for _ in range(max_depth):
        ancestry = own | ancestry.gather(1, parents[:, :, None].expand(-1, -1, nodes))
    return ancestry.sum(dim=2) - 1, ancestry


def verify_chain(choices: Tensor, drafted: Tensor) -> Tensor:
    return (drafted == choices[:, :-1]).cumprod(dim=1).sum(dim=1)


def verify_tree(
    choices: Tensor, drafted: Tensor, parents: Tensor, path_length: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Mark the nodes that agree and whose parents are marked; sort them to the front."""
    chosen = choices.gather(1, parents)[:, 1:] == drafted
    agrees = torch.nn.functional.pad(chosen, (1, 0), value=True)
    reached = torch.zeros_like(agrees)
    reached[:, 0] = True
    for _ in range(path_length - 1):
        reached = agrees & reached.gather(1, parents)
        reached[:, 0] = True
    accepted = reached.sum(dim=1) - 1
    # Parents stand before children, so a path's nodes ascend: reached ones first, each in order.
    order = torch.sort((~reached).to(torch.int8), dim=1, stable=True).indices[:, :path_length]
    steps = torch.arange(path_length, device=choices.device).clamp(max=accepted[:, None])
    path = order.gather(1, steps)
    return path, accepted, choices.gather(1, path[:, -1:])[:, 0]


def gather_accepted(values: Tensor, path: Tensor) -> Tensor:
    index = path.view(*path.shape, *(1,) * (values.dim() - 2))
    return values.gather(1, index.expand(-1, -1, *values.shape[2:]))


def append_tokens(
    sequences: Tensor,
    lengths: Tensor,
    req_indices: Tensor,
    starts: Tensor,
    offsets: Tensor,
    tokens: Tensor,
    accepted: Tensor,
) -> None:
    sequences[req_indices[:, None], starts[:, None] + offsets] = tokens
    lengths.index_add_(0, req_indices, accepted + 1)
