"""The kernel keeps the candidates that a stable sort keeps, ties and sizes aside."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdecode_kernels import TORCH
from specdecode_kernels.testing import DEVICE
from tests.kernels.trees import every_other
from tests.kernels.triton_ops import TRITON


def candidates(topk: int, steps: int, batch: int, seed: int, levels: int) -> tuple[Tensor, ...]:
    """A pool as a drafter leaves it: no child scores above its parent; many scores are equal."""
    generator = torch.Generator().manual_seed(seed)

    def cost(count: int) -> Tensor:
        return torch.randint(levels, (batch, count), generator=generator).float() / levels

    scores, parents = -cost(topk), torch.full((batch, topk), -1)
    places, best = torch.arange(topk).expand(batch, topk), scores
    for _ in range(steps - 1):
        children = best.repeat_interleave(topk, dim=1) - cost(topk * topk)
        base = scores.shape[1]
        scores = torch.cat([scores, children], dim=1)
        parents = torch.cat([parents, places.repeat_interleave(topk, dim=1)], dim=1)
        chosen = torch.sort(children, dim=1, descending=True, stable=True).indices[:, :topk]
        best, places = children.gather(1, chosen), base + chosen
    tokens = torch.randint(1000, scores.shape, generator=generator)
    return scores, tokens, parents


def assert_same(pool: tuple[Tensor, ...], count: int) -> None:
    scores, tokens, parents = pool
    wanted = TORCH.select_tree_nodes(scores, tokens, parents, count)
    found = TRITON.select_tree_nodes(scores, tokens, parents, count)
    for result, truth in zip(found, wanted, strict=True):
        assert torch.equal(result, truth)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data())
def test_it_equals_the_reference(data: st.DataObject) -> None:
    topk, steps = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 5))
    pool = candidates(topk, steps, data.draw(st.integers(1, 3)), data.draw(st.integers(0, 999)), 3)
    count = data.draw(st.integers(1, pool[0].shape[1]))
    on_device = tuple(x.to(DEVICE) for x in pool)
    assert_same(on_device, count)
    assert_same(tuple(every_other(x) for x in on_device), count)


def test_the_widest_tree_that_the_contract_allows(device: torch.device) -> None:
    assert_same(tuple(x.to(device) for x in candidates(16, 16, 1, 0, 1000)), 255)


def test_impossible_candidates_come_last_in_order(device: torch.device) -> None:
    scores = torch.tensor([[-torch.inf, -1.0, -torch.inf, -torch.inf]], device=device)
    tokens = torch.arange(4, device=device)[None]
    assert_same((scores, tokens, torch.full_like(tokens, -1)), 3)


def test_scores_that_are_no_numbers_write_nothing_outside(device: torch.device) -> None:
    scores = torch.full((3, 6), torch.nan, device=device)
    tokens = torch.arange(6, device=device).expand(3, 6)
    kept, parents = TRITON.select_tree_nodes(scores, tokens, torch.full_like(tokens, -1), 2)
    assert kept.tolist() == [[0, 1]] * 3
    assert parents.tolist() == [[0, 0, 0]] * 3
