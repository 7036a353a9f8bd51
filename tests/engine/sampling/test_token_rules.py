"""Forbidden tokens at every node of a chain and a tree, as a plain search over paths finds them."""

import random

import pytest
import torch
from torch import Tensor

from specdecode_engine.batch.draft import Draft
from specdecode_engine.batch.request import SamplingParams
from specdecode_engine.batch.shapes import DraftShape
from specdecode_engine.batch.staging import StagingBuffer
from specdecode_engine.sampling.token_rules import TokenRules
from specdecode_engine.speculate.tree import link
from specdecode_kernels import TORCH

VOCAB = 6
PROMPT = 4
ENDING = frozenset({0, 3, VOCAB, 2**31 - 1})  # two of them no logits have


class Committed:
    """The tokens of two requests, as the request table returns them."""

    def __init__(self, texts: list[list[int]]) -> None:
        width = max(map(len, texts))
        self._tokens = torch.tensor([text + [0] * (width - len(text)) for text in texts])

    def __call__(self, req_indices: Tensor, positions: Tensor) -> Tensor:
        return self._tokens[req_indices, positions.clamp(max=self._tokens.shape[1] - 1)]


def expected(params: SamplingParams, output: list[int]) -> set[int]:
    """Tokens that may not come after an output."""
    found = set(ENDING) if len(output) < params.min_tokens else set()
    for word in params.bad_words:
        count = len(word) - 1
        if count <= len(output) and output[len(output) - count :] == list(word[:-1]):
            found.add(word[-1])
    return found.intersection(range(VOCAB))


def draw_params(rng: random.Random) -> SamplingParams:
    words = tuple(
        tuple(rng.randrange(VOCAB + 1) for _ in range(rng.randint(1, 4)))
        for _ in range(rng.randint(0, 6))
    )
    return SamplingParams(0, 9, min_tokens=rng.choice((0, 2, 5)), bad_words=words)


def paths(parents: list[int], tokens: list[int]) -> list[list[int]]:
    """Drafted tokens from the root to each node."""
    found: list[list[int]] = [[]]
    for node, parent in enumerate(parents[1:], start=1):
        found.append([*found[parent], tokens[node - 1]])
    return found


@pytest.mark.parametrize("number", range(40))
def test_every_node_forbids_what_its_path_does(number: int) -> None:
    rng = random.Random(number)
    everything = [draw_params(rng) for _ in range(2)]
    texts = [[rng.randrange(VOCAB) for _ in range(PROMPT + rng.randint(1, 4))] for _ in range(2)]
    nodes = rng.choice((1, 3, 5))
    tokens = torch.tensor([[rng.randrange(VOCAB) for _ in range(nodes - 1)] for _ in range(2)])
    parents = [list(range(-1, nodes - 1)) for _ in range(2)]
    is_tree = nodes > 1 and number % 2 == 1
    if is_tree:
        parents = [[0, *(rng.randrange(node) for node in range(1, nodes))] for _ in range(2)]
    for each in parents:
        each[0] = 0
    draft = None
    if nodes > 1:
        tree = link(TORCH, torch.tensor(parents), nodes - 1) if is_tree else None
        draft = Draft(DraftShape(nodes - 1, 2 if is_tree else 1, nodes), tokens, tree)
    found = [paths(own, drafted.tolist()) for own, drafted in zip(parents, tokens, strict=True)]
    positions = torch.tensor(
        [[len(text) + len(path) for path in own] for text, own in zip(texts, found, strict=True)]
    )
    rules = TokenRules(VOCAB, StagingBuffer(torch.device("cpu")), Committed(texts))
    for req_index, params in enumerate(everything):
        rules.open(req_index, params, PROMPT, ENDING)
    batch = rules.stage([0, 1])
    logits = torch.randn(2, nodes, VOCAB)
    masked = logits if batch is None else rules.apply(logits, batch, positions, draft)
    for row, params in enumerate(everything):
        for node, path in enumerate(found[row]):
            wanted = logits[row, node].clone()
            wanted[sorted(expected(params, texts[row][PROMPT:] + path))] = -torch.inf
            assert torch.equal(masked[row, node], wanted)


def test_a_closed_request_has_no_rules() -> None:
    rules = TokenRules(VOCAB, StagingBuffer(torch.device("cpu")), None)
    rules.open(1, SamplingParams(0, 9, min_tokens=2), PROMPT, ENDING)
    assert rules.stage([1]) is not None
    rules.close(1)
    assert rules.stage([1]) is None


def test_tokens_that_no_logits_have_need_no_rule() -> None:
    rules = TokenRules(VOCAB, StagingBuffer(torch.device("cpu")), None)
    params = SamplingParams(0, 9, min_tokens=2, bad_words=((1, VOCAB),))
    rules.open(1, params, PROMPT, frozenset({VOCAB}))
    assert rules.stage([1]) is None
