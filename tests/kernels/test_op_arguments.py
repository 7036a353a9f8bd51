"""Arguments of the tree, path and sampling ops that do not fit are refused, in a sentence."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specdecode_kernels import TORCH, DraftedNodes, PenaltyParamsBatch, SamplingParamsBatch
from specdecode_kernels.testing import checked

OPS = checked(TORCH)


def zeros(*shape: int) -> Tensor:
    return torch.zeros(*shape)


def ids(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=torch.int64)


PENALTIES = PenaltyParamsBatch(
    zeros(1, 5), zeros(1, 5).bool(), zeros(1, 5), ids(2), zeros(2, 3).double()
)
SAMPLING = SamplingParamsBatch(zeros(2), ids(2), zeros(2), zeros(2), ids(2), False)
LOGITS = zeros(2, 3, 5)


def move(pool: Tensor, table: Tensor, path: Tensor, page_size: int) -> None:
    OPS.compact_kv(pool, pool.clone(), table, ids(2), ids(2), path, page_size)


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "sum": (
        lambda: OPS.add_rms_norm(zeros(2, 4), zeros(2, 4).half(), zeros(4), 1e-5),
        "must have one type, and one shape but for parts",
    ),
    "sum of a part for each row": (
        lambda: OPS.add_rms_norm(zeros(2, 4), zeros(2, 2, 3), zeros(4), 1e-5),
        r"update \[2, 2, 3\]",
    ),
    "sum's weight": (
        lambda: OPS.add_rms_norm(zeros(2, 4), zeros(2, 4), zeros(5), 1e-5),
        r"weight \[5\] does not fit",
    ),
    "candidates": (
        lambda: OPS.select_tree_nodes(zeros(2, 6), ids(2, 5), ids(2, 6), 3),
        r"must all be \[batch, candidates\]",
    ),
    "count": (
        lambda: OPS.select_tree_nodes(zeros(2, 6), ids(2, 6), ids(2, 6), 7),
        "cannot keep 7 of 6 candidates",
    ),
    "parents": (lambda: OPS.build_tree_mask(ids(2, 0), 3), "root included"),
    "chain": (lambda: OPS.verify_chain(ids(2, 4), ids(2, 4)), r"\[batch, nodes - 1\]"),
    "tree": (
        lambda: OPS.verify_tree(ids(2, 4), ids(2, 3), ids(2, 3), 2),
        "must name one node for each",
    ),
    "path length": (
        lambda: OPS.verify_tree(ids(2, 4), ids(2, 3), ids(2, 4), 5),
        "a path of 5 nodes does not fit 4 nodes",
    ),
    "values": (
        lambda: OPS.gather_accepted(zeros(2, 3), ids(3, 2)),
        r"must be \[batch, nodes, ...\]",
    ),
    "pool": (
        lambda: move(zeros(8, 1, 2), ids(2, 4), ids(2, 2), 4),
        r"must both be \[layers, rows, kv_heads, dim\]",
    ),
    "strided pool": (
        lambda: move(zeros(8, 1, 2, 1).transpose(0, 2), ids(2, 4), ids(2, 2), 4),
        "must be contiguous",
    ),
    "slots": (lambda: move(zeros(1, 8, 1, 2), ids(2, 4), ids(3, 2), 4), "one number for each row"),
    "pages": (
        lambda: move(zeros(1, 9, 1, 2), ids(2, 4), ids(2, 2), 4),
        "9 cache rows are not a multiple of the page size, 4",
    ),
    "logits": (
        lambda: OPS.sample(zeros(2, 5), None, ids(2), None),
        r"must be \[batch, nodes, vocab\]",
    ),
    "positions": (lambda: OPS.sample(LOGITS, None, ids(2), None), r"must be \[2, 3\]"),
    "parameters": (
        lambda: OPS.sample(LOGITS, replace(SAMPLING, seeds=ids(3)), ids(2, 3), None),
        r"every sampling parameter must be \[2\]",
    ),
    "ids": (lambda: OPS.sample(LOGITS, SAMPLING, ids(2, 3), ids(4)), "5 tokens needs as many ids"),
    "tables": (
        lambda: OPS.apply_penalties(LOGITS, replace(PENALTIES, bias=zeros(1, 4)), None),
        r"must all be \[states, 5\]",
    ),
    "strided tables": (
        lambda: OPS.apply_penalties(
            LOGITS, replace(PENALTIES, counts=zeros(5, 2)[:, :1].t()), None
        ),
        "must be contiguous",
    ),
    "states": (
        lambda: OPS.apply_penalties(LOGITS, replace(PENALTIES, states=ids(3)), None),
        r"states \[3\] must be \[2\]",
    ),
    "drafted": (
        lambda: OPS.apply_penalties(LOGITS, PENALTIES, DraftedNodes(ids(2, 3), None, 2)),
        r"drafted tokens \[2, 3\] must be \[2, 2\]",
    ),
    "drafted parents": (
        lambda: OPS.apply_penalties(LOGITS, PENALTIES, DraftedNodes(ids(2, 2), ids(2, 2), 2)),
        r"parents \[2, 2\] must be \[2, 3\]",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused(name: str) -> None:
    call, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        call()
