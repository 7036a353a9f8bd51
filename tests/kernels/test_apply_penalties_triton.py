"""Penalties and bias by the kernel equal the reference, at every node of a chain and of a tree."""

import random

import pytest
import torch

from specdecode_kernels import TORCH, DraftedNodes, PenaltyParamsBatch
from tests.kernels.tensors import below, inside_wider, normal
from tests.kernels.trees import random_parents
from tests.kernels.triton_ops import TRITON

BATCH, NODES = 3, 9
STATES = [1, -1, 0]
NUMBERS = [[1.3, 0.0, 0.7], [1.0, 0.0, 0.0], [0.6, -0.4, 0.2]]


def rows(vocab: int, device: torch.device) -> PenaltyParamsBatch:
    return PenaltyParamsBatch(
        counts=below(3, 2, vocab, device=device).float(),
        in_prompt=below(2, 2, vocab, seed=1, device=device).bool(),
        bias=normal(2, vocab, seed=2, device=device),
        states=torch.tensor(STATES, device=device),
        numbers=torch.tensor(NUMBERS, dtype=torch.float64, device=device),
    )


@pytest.mark.parametrize("vocab", [5, 300, 2049])
@pytest.mark.parametrize("kind", ["plain", "chain", "tree"])
def test_it_equals_the_reference(kind: str, vocab: int, device: torch.device) -> None:
    nodes = 1 if kind == "plain" else NODES
    logits = normal(BATCH, nodes, vocab, seed=3, device=device) * 4
    drafted = None
    if kind != "plain":
        rng = random.Random(vocab)
        trees = torch.tensor([random_parents(rng, NODES, 4) for _ in range(BATCH)], device=device)
        # Few different tokens, so that some stand on a path twice.
        tokens = below(min(vocab, 4), BATCH, NODES - 1, device=device)
        drafted = DraftedNodes(tokens, *((trees, 4) if kind == "tree" else (None, NODES - 1)))
    wanted = TORCH.apply_penalties(logits, rows(vocab, device), drafted)
    assert not torch.equal(wanted[0], logits[0])
    for strided in (logits, inside_wider(logits)):
        result = TRITON.apply_penalties(strided, rows(vocab, device), drafted)
        torch.testing.assert_close(result, wanted, atol=2e-6, rtol=2e-6)
        assert torch.equal(result[1], logits[1])


def test_what_a_grammar_forbids_stays_forbidden(device: torch.device) -> None:
    logits = torch.full((BATCH, 1, 5), -torch.inf, device=device)
    assert torch.equal(TRITON.apply_penalties(logits, rows(5, device), None), logits)
