"""How far a draft agrees with the target's choices, along a chain and down a tree."""

import torch
from torch import Tensor


def verify_chain(choices: Tensor, drafted: Tensor) -> tuple[Tensor, Tensor]:
    """Count what comes before the first disagreement."""
    agrees = (drafted == choices[:, :-1]).to(torch.int64)
    accepted = agrees.cumprod(dim=1).sum(dim=1)
    rows = torch.arange(len(choices), device=choices.device)
    return accepted, choices[rows, accepted]


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
    # Nodes stand breadth first, so a path's nodes ascend: reached ones first, each side in order.
    order = torch.sort((~reached).to(torch.int8), dim=1, stable=True).indices[:, :path_length]
    steps = torch.arange(path_length, device=choices.device).clamp(max=accepted[:, None])
    path = order.gather(1, steps)
    return path, accepted, choices.gather(1, path[:, -1:])[:, 0]
