"""The rows of a step in which requests verify different numbers of their drafted nodes."""

import itertools
import random
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode_engine.batch.draft import Draft
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.batch.request_table import RequestTable
from specdecode_engine.batch.sequence import Sequence
from specdecode_engine.batch.shapes import DraftShape
from specdecode_engine.batch.staging import StagingBuffer
from specdecode_engine.batch.verify_rows import (
    VerifyRows,
    check_verify_rows,
    divide,
    lay_out_nodes,
    rows_within_limits,
)

CPU = torch.device("cpu")


def sequence(max_steps: int | None, max_tokens: int = 50) -> Sequence:
    sampling = SamplingParams(seed=1, max_tokens=max_tokens)
    return Sequence.of(Request("r", (1, 2), sampling, max_steps=max_steps))


def staged(counts: tuple[int, ...], num_tokens: int) -> VerifyRows:
    rows = VerifyRows.stage(counts, num_tokens, StagingBuffer(CPU))
    assert rows is not None
    return rows


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(1, n)))))
def test_each_verified_node_has_a_row_and_the_others_the_last_row_of_their_request(
    drawn: tuple[int, list[int]],
) -> None:
    width, counts = drawn
    nodes, rows = lay_out_nodes(counts, width)
    assert nodes == [b * width + j for b, count in enumerate(counts) for j in range(count)]
    assert len(rows) == len(counts) * width
    for b, j in product(range(len(counts)), range(width)):
        assert nodes[rows[b * width + j]] == b * width + min(j, counts[b] - 1)


def test_all_nodes_of_every_request_need_no_layout() -> None:
    assert VerifyRows.stage((4, 4, 4), 4, StagingBuffer(CPU)) is None


@pytest.mark.parametrize("chosen", [(1,), (1, 5), (0, 2), (2, 3, 1)], ids=str)
def test_what_a_policy_may_not_choose_is_refused_with_the_numbers(chosen: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"one number from 1 to 4 for each of the 2 requests"):
        check_verify_rows(chosen, DraftShape.chain(3), 2)


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        (DraftShape.chain(3), (4, 1, 2, 3, 4)),
        (DraftShape.of(3, 2, 6), (6, 1, 3, 6, 6)),
        (DraftShape.of(5, 3, 40), (40, 1, 4, 13, 40)),
        (DraftShape.chain(0), (1, 1, 1, 1, 1)),
    ],
)
def test_a_limit_of_draft_steps_bounds_the_rows(shape: DraftShape, wanted: tuple[int, ...]) -> None:
    limits = (None, 0, 1, 2, 2**31 - 1)
    assert rows_within_limits(shape, tuple(sequence(limit) for limit in limits)) == wanted


def test_nodes_that_cannot_be_part_of_the_output_are_not_verified() -> None:
    shape = DraftShape.chain(3)
    sequences = tuple(sequence(None, max_tokens) for max_tokens in (1, 2, 3, 4, 5))
    assert rows_within_limits(shape, sequences) == (1, 2, 3, 4, 4)
    for each in sequences[1:]:
        each.in_flight_steps = 1  # adds one token at least
    assert rows_within_limits(shape, sequences) == (1, 1, 2, 3, 4)
    assert rows_within_limits(shape, (sequence(1, 5), sequence(2, 2))) == (2, 2)


def table_of(lengths: tuple[int, ...], page_size: int) -> RequestTable:
    pages = -(-40 // page_size)
    table = RequestTable(len(lengths) + 1, 64, pages, page_size, StagingBuffer(CPU))
    for number, length in enumerate(lengths):
        table.open(number + 1, [0] * (length + 1))
        first = 1 + number * pages
        table.write_pages([(number + 1, range(first, first + pages))])
        table.set_computed(number + 1, length)
    return table


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("is_tree", [False, True])
def test_the_selected_rows_are_those_of_the_verified_nodes(is_tree: bool, page_size: int) -> None:
    lengths, counts, width = (7, 1, 12, 5), (3, 1, 5, 2), 5
    table = table_of(lengths, page_size)
    indices = torch.tensor([1, 2, 3, 4])
    batch = table.decode_batch([1, 2, 3, 4], lengths, indices)
    depths = torch.tensor([[0, 1, 1, 2, 2]] * 4)
    every = table.node_rows(batch, depths) if is_tree else table.window_rows(batch, 0, width)
    verify = staged(counts, width)
    some = verify.select(every)
    kept = [b * width + j for b, count in enumerate(counts) for j in range(count)]
    assert torch.equal(some.positions, every.positions[kept])
    assert torch.equal(some.slot_mapping, every.slot_mapping[kept])
    assert torch.equal(some.req_indices, every.req_indices[kept])
    assert torch.equal(some.layout.kv_lens, every.layout.kv_lens[kept])
    assert some.layout.qo_lens == counts
    assert some.layout.cu_seqlens_q is not None
    assert some.layout.cu_seqlens_q.tolist() == [0, 3, 4, 9, 11]
    bounds = some.layout.causal_bounds
    if is_tree:
        assert bounds is None
    else:
        assert bounds is not None
        assert bounds.kv_lens == tuple(n + m for n, m in zip(lengths, counts, strict=True))
        assert bounds.inexact_rows == 5


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_best_scores_of_a_batch_are_divided_into_prefixes(data: st.DataObject) -> None:
    size, width = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 5))
    batch_size, most = size + data.draw(st.integers(0, 3)), data.draw(st.integers(1, width))
    steps = st.sampled_from([0.0, -0.1, -1.0, -3.0, -torch.inf])
    drawn = data.draw(st.lists(steps, min_size=size * width, max_size=size * width))
    scores = torch.tensor(drawn).view(size, width).cumsum(dim=1)
    verified = divide(scores, batch_size, most)
    assert verified.shape == (batch_size,)
    assert verified.sum() == batch_size * most
    assert 0 <= int(verified.min()) <= int(verified.max()) <= width
    padded = torch.cat([scores, torch.full((batch_size - size, width), -torch.inf)])
    is_chosen = torch.arange(width) < verified[:, None]
    best = padded.flatten().sort(descending=True).values[: batch_size * most]
    assert torch.equal(padded[is_chosen].sort(descending=True).values, best)


def test_equal_scores_are_chosen_by_their_places_then_by_request() -> None:
    scores = torch.tensor([[-1.0, -1.0, -1.0], [-1.0, -2.0, -2.0], [-1.0, -1.0, -2.0]])
    assert divide(scores, 3, 1).tolist() == [1, 1, 1]
    assert divide(scores, 3, 2).tolist() == [3, 1, 2]
    assert divide(scores[1:], 2, 2).tolist() == [2, 2]


def test_a_request_verifies_no_more_than_it_may_accept() -> None:
    scores = torch.tensor([[-0.1, -torch.inf, -torch.inf], [-5.0, -6.0, -7.0]])
    assert divide(scores, 2, 2).tolist() == [1, 3]


@pytest.mark.parametrize("counts", [(3, 1, 5, 2), (1, 1, 1, 1), (5, 5, 5, 5), (1, 5)])
def test_divided_rows_are_laid_out_as_rows_that_the_host_chooses(counts: tuple[int, ...]) -> None:
    width, total = 5, sum(counts)
    found = VerifyRows.divided(torch.tensor(counts) - 1, width, total)
    nodes, rows = lay_out_nodes(counts, width)
    assert found.counts == counts
    assert not found.is_on_device
    assert found.nodes.tolist() == nodes
    assert found.rows.flatten().tolist() == rows
    assert found.cu_seqlens.tolist() == [0, *itertools.accumulate(counts)]
    kept = [[0] * (count - 1) + [-1] * (width - count) for count in counts]
    assert found.left_out.tolist() == kept


def test_tokens_of_nodes_that_are_not_verified_agree_with_no_choice() -> None:
    rng = random.Random(3)
    tokens = torch.tensor([[rng.randrange(9) for _ in range(4)] for _ in range(3)])
    limited = staged((1, 3, 5), 5).limit(Draft(DraftShape.chain(4), tokens))
    assert limited.tokens.tolist() == [
        [-1] * 4,
        [*tokens[1, :2].tolist(), -1, -1],
        tokens[2].tolist(),
    ]
