"""Tree verification keeps the target's distribution, exactly enumerated; broken rules are caught.

A Markov target over five tokens, a draft that resembles it, trees grown with the shared noise.
The joint laws of the next three tokens are compared with their exact probabilities by chi-square
over 30 000 seeds. Each mutation below is a mistake that real engines have made.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from specdecode_engine.batch.draft import Draft
from specdecode_engine.batch.request import SamplingParams
from specdecode_engine.batch.shapes import DraftShape
from specdecode_engine.batch.staging import StagingBuffer
from specdecode_engine.model.forward import BestTokens
from specdecode_engine.sampling.sampler import Sampler, SamplingBatch
from specdecode_engine.speculate.tree import FirstLevel, TreeLevel, grow_tree, link
from specdecode_engine.steps.decode import accept, gather_accepted
from specdecode_kernels import TORCH

VOCAB, SEEDS, LENGTH = 5, 30_000, 7
SHAPE = DraftShape(num_steps=2, topk=2, num_tokens=5)
CRITICAL = 66.0  # 24 degrees of freedom, p about 1e-5


@dataclass(frozen=True, slots=True)
class World:
    """Target and draft as tables of logits [token before, token], and one slot per seed."""

    target: Tensor
    draft: Tensor
    sampler: Sampler
    batch: SamplingBatch


@pytest.fixture(scope="module")
def world() -> World:
    generator = torch.Generator().manual_seed(3)
    target = torch.randn(VOCAB, VOCAB, generator=generator) * 1.3
    draft = target + torch.randn(VOCAB, VOCAB, generator=generator) * 0.6
    sampler = Sampler(VOCAB, StagingBuffer(torch.device("cpu")))
    req_indices = list(range(1, SEEDS + 1))
    for req_index in req_indices:
        sampler.open(
            req_index, SamplingParams(seed=req_index, max_tokens=2, temperature=1.0), [0], []
        )
    return World(target, draft, sampler, sampler.stage(req_indices))


def positions(depths: Tensor) -> Tensor:
    return LENGTH + 1 + depths


def grow(world: World) -> Draft:
    def best(logits: Tensor, depth: int) -> BestTokens:
        places = positions(torch.full(logits.shape[:2], depth))
        scores = world.sampler.score_draft(logits, world.batch, places)
        return BestTokens.of(scores, SHAPE.topk)

    def advance(frontier: TreeLevel) -> BestTokens:
        return best(world.draft[frontier.tokens], frontier.step + 1)

    scores, ids = best(world.draft[0].expand(SEEDS, 1, VOCAB), 0)
    level = FirstLevel.of(SHAPE.topk, ids.device)
    return grow_tree(TORCH, SHAPE, level, BestTokens(scores[:, 0], ids[:, 0]), advance)


def node_logits(world: World, draft: Draft) -> Tensor:
    nodes = torch.nn.functional.pad(draft.tokens, (1, 0))  # the root carries token 0
    return world.target[nodes]


def choose(world: World, draft: Draft, logits: Tensor) -> Tensor:
    assert draft.tree is not None
    return world.sampler.sample(logits, world.batch, positions(draft.tree.depths), draft)


def emit(world: World, draft: Draft, choices: Tensor) -> Tensor:
    """First three tokens of every seed [SEEDS, 3]: from the step, then from plain decoding."""
    path, accepted = accept(TORCH, choices, draft)
    emitted = gather_accepted(TORCH, choices, path)
    tokens = [emitted[:, 0]]
    for depth in (1, 2):
        logits = world.target[tokens[-1]][:, None]
        places = positions(torch.full((SEEDS, 1), depth))
        plain = world.sampler.sample(logits, world.batch, places)[:, 0]
        tokens.append(torch.where(accepted >= depth, emitted[:, depth], plain))
    return torch.stack(tokens, dim=1)


def chi_square(world: World, tokens: Tensor) -> float:
    """The larger statistic of the joint laws of tokens 1, 2 and of tokens 2, 3."""
    probs = torch.softmax(world.target.double(), dim=-1)
    law, worst = probs[0], 0.0
    for place in (0, 1):
        joint = law[:, None] * probs
        expected = joint.flatten() * SEEDS
        cells = tokens[:, place] * VOCAB + tokens[:, place + 1]
        observed = torch.bincount(cells, minlength=VOCAB * VOCAB)
        assert expected.min() >= 5
        worst = max(worst, float(((observed - expected) ** 2 / expected).sum()))
        law = joint.sum(dim=0)
    return worst


def test_the_first_tokens_follow_the_target(world: World) -> None:
    draft = grow(world)
    choices = choose(world, draft, node_logits(world, draft))
    _, accepted = accept(TORCH, choices, draft)
    assert accepted.double().mean() > 1.0  # speculation takes place
    assert chi_square(world, emit(world, draft, choices)) < CRITICAL


def accept_nearly_right(world: World, draft: Draft) -> Tensor:
    """Threshold 0.9: a child is taken if the target finds it nearly as likely as its choice."""
    logits = node_logits(world, draft)
    choices = choose(world, draft, logits)
    assert draft.tree is not None
    probs = torch.softmax(logits, dim=-1)
    for node in range(SHAPE.num_tokens - 1, 0, -1):
        parent = draft.tree.parents[:, node]
        token = draft.tokens[:, node - 1]
        rows = torch.arange(SEEDS)
        is_near = probs[rows, parent, token] >= 0.9 * probs[rows, parent, choices[rows, parent]]
        choices[rows, parent] = torch.where(is_near, token, choices[rows, parent])
    return choices


def draw_the_bonus_anew(world: World, draft: Draft) -> Tensor:
    """Independent noise for acceptance: a rejected node draws its token with other noise."""
    assert draft.tree is not None
    logits = node_logits(world, draft)
    judged = choose(world, draft, logits)
    places = positions(draft.tree.depths) + 1000
    redrawn = world.sampler.sample(logits, world.batch, places, draft)
    is_child = torch.zeros_like(judged, dtype=torch.bool)
    for node in range(1, SHAPE.num_tokens):
        parent = draft.tree.parents[:, node]
        rows = torch.arange(SEEDS)
        is_child[rows, parent] |= judged[rows, parent] == draft.tokens[:, node - 1]
    return torch.where(is_child, judged, redrawn)


def read_with_a_wrong_stride(world: World, draft: Draft) -> Tensor:
    """Rows of the logits are cut as if every tree had steps + 1 nodes instead of its own."""
    logits = node_logits(world, draft)
    stride = SHAPE.num_steps + 1
    flat = logits.flatten(0, 1)
    rows = (torch.arange(SEEDS)[:, None] * stride + torch.arange(SHAPE.num_tokens)).flatten()
    return choose(world, draft, flat[rows].view_as(logits))


@pytest.mark.parametrize(
    "mutation", [accept_nearly_right, draw_the_bonus_anew, read_with_a_wrong_stride]
)
def test_a_broken_rule_is_caught(world: World, mutation: Callable[[World, Draft], Tensor]) -> None:
    draft = grow(world)
    assert chi_square(world, emit(world, draft, mutation(world, draft))) > 3 * CRITICAL


def test_duplicate_siblings_are_caught(world: World) -> None:
    """Two siblings have the same token: both are reached, which is not a valid path."""
    draft = grow(world)
    parents = torch.tensor([[0, 0, 0, 1, 1]]).expand(SEEDS, -1)
    best = world.draft[0].argmax()
    tokens = torch.stack([torch.full((SEEDS,), int(best))] * 2 + [draft.tokens[:, 2]] * 2, dim=1)
    broken = replace(draft, tokens=tokens, tree=link(TORCH, parents, 2))
    choices = choose(world, broken, node_logits(world, broken))
    assert chi_square(world, emit(world, broken, choices)) > 3 * CRITICAL
