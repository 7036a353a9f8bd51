"""Texts are drawn again where a router is close to other experts."""

import torch
from torch import Tensor, nn

from checks.zoo.near_ties import NearTies


class MarginRouter(nn.Module):
    """Chooses by the first two numbers of a row."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        weights, ids = x.topk(1, dim=-1)
        return x, weights, ids


class ScoreRouter(nn.Module):
    """Returns scores, 0 for experts that are not chosen, as Llama 4 does."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        best = x.max(dim=-1, keepdim=True).values
        return (x == best).float(), x


def has_near_tie(router: nn.Module, *row: float) -> bool:
    ties = NearTies()
    network = nn.Sequential(router)
    with ties.watching(network):
        network(torch.tensor([[5.0, 1.0], [*row]]))
    assert not router._forward_hooks
    return ties.found


def test_only_close_choices_are_near_ties() -> None:
    for router in (MarginRouter(), ScoreRouter()):
        assert not has_near_tie(router, 1.0, 1.2)
        assert has_near_tie(router, 1.0, 1.00001)
