"""The accepted path: found like a walk on paper, and everything of it moved together."""

import random

import pytest
import torch

from specdecode_engine.batch.draft import Draft
from specdecode_engine.batch.request_table import RequestTable
from specdecode_engine.batch.shapes import DraftShape
from specdecode_engine.batch.staging import StagingBuffer
from specdecode_engine.batch.verify_rows import VerifyRows
from specdecode_engine.model.kv.kv_cache import KVCache
from specdecode_engine.model.kv.layer_map import LayerMap, LayerShape
from specdecode_engine.speculate.tree import link
from specdecode_engine.steps.decode import accept, gather_accepted
from specdecode_kernels import TORCH

CPU = torch.device("cpu")


def random_draft(rng: random.Random, shape: DraftShape, batch: int) -> Draft:
    """Random trees with distinct siblings, no deeper than the shape allows."""
    all_parents, all_tokens = [], []
    for _ in range(batch):
        parents, depths, tokens = [0], [0], [0]
        while len(parents) < shape.num_tokens:
            free = [
                n
                for n in range(len(parents))
                if depths[n] < shape.num_steps and parents[1:].count(n) < shape.topk
            ]
            parent = rng.choice(free)
            siblings = {tokens[n] for n in range(1, len(parents)) if parents[n] == parent}
            parents.append(parent)
            depths.append(depths[parent] + 1)
            tokens.append(rng.choice([t for t in range(6) if t not in siblings]))
        order = sorted(range(len(parents)), key=lambda n: (depths[n], n))
        place = {node: index for index, node in enumerate(order)}
        all_parents.append([place[parents[n]] for n in order])
        all_tokens.append([tokens[n] for n in order[1:]])
    return Draft(
        shape, torch.tensor(all_tokens), link(TORCH, torch.tensor(all_parents), shape.num_steps)
    )


def walk_on_paper(parents: list[int], tokens: list[int], choices: list[int]) -> list[int]:
    path, node = [0], 0
    while True:
        wanted = choices[node]
        children = [n for n in range(1, len(parents)) if parents[n] == node]
        matching = [n for n in children if tokens[n - 1] == wanted]
        if not matching:
            return path
        node = matching[0]
        path.append(node)


@pytest.mark.parametrize("seed", range(40))
def test_walk_equals_the_walk_on_paper(seed: int) -> None:
    rng = random.Random(seed)
    shape = DraftShape(rng.randint(1, 5), rng.randint(2, 4), rng.randint(2, 12))
    bound = 1 + sum(shape.topk**depth for depth in range(1, shape.num_steps + 1))
    shape = DraftShape(shape.num_steps, shape.topk, min(shape.num_tokens, bound))
    draft = random_draft(rng, shape, batch=4)
    choices = torch.tensor([[rng.randrange(6) for _ in range(shape.num_tokens)] for _ in range(4)])
    path, accepted = accept(TORCH, choices, draft)
    assert draft.tree is not None
    assert path is not None
    assert path.shape == (4, shape.path_length)
    for row in range(4):
        expected = walk_on_paper(
            draft.tree.parents[row].tolist(), draft.tokens[row].tolist(), choices[row].tolist()
        )
        assert accepted[row] == len(expected) - 1
        filled = expected + [expected[-1]] * (shape.path_length - len(expected))
        assert path[row].tolist() == filled


@pytest.mark.parametrize("seed", range(40))
def test_the_accepted_path_is_that_of_the_verified_nodes_alone(seed: int) -> None:
    """What the target chose at a node that was not verified is arbitrary, and is not followed."""
    rng = random.Random(seed)
    shape = DraftShape(3, rng.randint(2, 4), rng.randint(2, 10))
    draft = random_draft(rng, shape, batch=5)
    assert draft.tree is not None
    counts = tuple(rng.randint(1, shape.num_tokens) for _ in range(5))
    verify = VerifyRows.stage(counts, shape.num_tokens, StagingBuffer(CPU))
    choices = torch.tensor([[rng.randrange(6) for _ in range(shape.num_tokens)] for _ in range(5)])
    path, accepted = accept(TORCH, choices, draft if verify is None else verify.limit(draft))
    assert path is not None
    for row, count in enumerate(counts):
        nodes = draft.tree.parents[row].tolist()[:count], draft.tokens[row].tolist()[: count - 1]
        expected = walk_on_paper(*nodes, choices[row].tolist())
        assert path[row].tolist()[: len(expected)] == expected
        assert set(path[row].tolist()[len(expected) :]) <= {expected[-1]}
        assert accepted[row] == len(expected) - 1


@pytest.mark.parametrize("seed", range(20))
def test_a_chain_is_accepted_no_further_than_it_was_verified(seed: int) -> None:
    rng = random.Random(seed)
    drafted, counts = torch.randint(0, 2, (6, 4)), tuple(rng.randint(1, 5) for _ in range(6))
    choices = torch.randint(0, 2, (6, 5))
    draft = Draft(DraftShape.chain(4), drafted)
    verify = VerifyRows.stage(counts, 5, StagingBuffer(CPU))
    path, accepted = accept(TORCH, choices, draft if verify is None else verify.limit(draft))
    _, unlimited = accept(TORCH, choices, draft)
    assert path is None
    assert accepted.tolist() == [
        min(most, count - 1) for most, count in zip(unlimited.tolist(), counts, strict=True)
    ]


def test_a_chain_counts_up_to_the_first_disagreement() -> None:
    draft = Draft(DraftShape.chain(3), torch.tensor([[4, 5, 6], [4, 9, 6], [9, 5, 6]]))
    choices = torch.tensor([[4, 5, 6, 7]] * 3)
    for one, nodes, expected in ((draft, choices, [3, 1, 0]), (None, choices[:, :1], [0, 0, 0])):
        path, accepted = accept(TORCH, nodes, one)
        assert path is None
        assert accepted.tolist() == expected


@pytest.mark.parametrize("page_size", [1, 2, 4, 16])
def test_rows_of_the_path_move_to_the_front_in_every_layer_at_once(page_size: int) -> None:
    """Sources and targets overlap (R3, write after read): all are read before any is written."""
    wide = LayerShape(kv_heads=1, k_head_dim=2, v_head_dim=2)
    narrow = LayerShape(kv_heads=2, k_head_dim=3, v_head_dim=1)
    layer_map = LayerMap.build([wide, narrow, wide, wide, narrow], [0, 1, 2, 2, 4])
    pool = KVCache(layer_map, 40, page_size, torch.float64, CPU)
    parts = [part for group in pool.groups for part in (group.k, group.v)]
    for part in parts:
        part.copy_(torch.randn(part.shape))
    table = RequestTable(
        num_rows=3,
        width=64,
        pages_per_request=-(-24 // page_size),
        page_size=page_size,
        staging=StagingBuffer(CPU),
    )
    rng = random.Random(page_size)
    ids = rng.sample(range(1, 40), 2 * -(-24 // page_size) if page_size > 1 else 36)
    half = len(ids) // 2
    pages = {1: ids[:half], 2: ids[half:]}
    for req_index in (1, 2):
        table.open(req_index, [0] * 8)
        table.write_pages([(req_index, pages[req_index])])
        table.set_computed(req_index, 7)
    batch = table.decode_batch([1, 2], [7, 7], torch.tensor([1, 2]))
    path = torch.tensor([[0, 2, 5, 8], [0, 1, 3, 3]])
    before = [part.clone() for part in parts]
    pool.compact(table.pages, batch.req_indices, batch.lengths, path)

    def row(req_index: int, position: int) -> int:
        return pages[req_index][position // page_size] * page_size + position % page_size

    moved = set()
    for req_index, nodes in ((1, [0, 2, 5, 8]), (2, [0, 1, 3, 3])):
        for step, node in enumerate(nodes):
            here, source = row(req_index, 7 + step), row(req_index, 7 + node)
            moved.add(here)
            for part, old in zip(parts, before, strict=True):
                assert torch.equal(part[:, here], old[:, source])
    others = [row for row in range(40 * page_size) if row not in moved]
    for part, old in zip(parts, before, strict=True):
        assert torch.equal(part[:, others], old[:, others])


def test_every_per_node_value_is_taken_along_the_path_and_as_wide_as_it() -> None:
    values = torch.arange(2 * 6 * 3).view(2, 6, 3)
    path = torch.tensor([[0, 3, 5], [0, 1, 1]])
    taken = gather_accepted(TORCH, values, path)
    assert taken.shape == (2, 3, 3)
    assert torch.equal(taken[0], values[0, [0, 3, 5]])
    assert torch.equal(taken[1], values[1, [0, 1, 1]])
    assert gather_accepted(TORCH, values, None) is values
