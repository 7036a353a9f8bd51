"""The nodes of a draft tree: which candidates stay, and who hangs on whom."""

import torch
from torch import Tensor


def select_tree_nodes(
    scores: Tensor, tokens: Tensor, parents: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """Take the best by a stable sort, put them back in order, look their parents up."""
    best = torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :count]
    chosen = best.sort(dim=1).values
    flat_parents = parents.gather(1, chosen)
    places = torch.searchsorted(chosen, flat_parents.clamp(min=0)) + 1
    places = torch.where(flat_parents < 0, 0, places)
    return tokens.gather(1, chosen), torch.nn.functional.pad(places, (1, 0))


def build_tree_mask(parents: Tensor, max_depth: int) -> tuple[Tensor, Tensor]:
    """Let every node take over what its parent sees, once per level."""
    nodes = parents.shape[1]
    own = torch.eye(nodes, dtype=torch.bool, device=parents.device).expand(len(parents), -1, -1)
    ancestry = own
    for _ in range(max_depth):
        ancestry = own | ancestry.gather(1, parents[:, :, None].expand(-1, -1, nodes))
    return ancestry.sum(dim=2) - 1, ancestry
