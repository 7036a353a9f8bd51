"""Arguments that do not fit are refused with a sentence that says what is wrong."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from specdecode_kernels import (
    AttentionLayout,
    KvScale,
    Tail,
    apply_rope,
    attend,
    linear,
    merge_states,
    rms_norm,
    silu_and_mul,
    store_kv,
)


def zeros(*shape: int) -> Tensor:
    return torch.zeros(*shape)


def ids(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=torch.int64)


def layout(query_lens: tuple[int, ...] = (1, 1), page_size: int = 4) -> AttentionLayout:
    return AttentionLayout(
        ids(len(query_lens), 2), page_size, query_lens, ids(sum(query_lens)), 2 * page_size
    )


def tail(batch: int = 2, queries: int = 1, dim: int = 6) -> Tail:
    kv = zeros(batch, 3, 2, dim)
    return Tail(kv, kv, torch.ones(batch, queries, 3, dtype=torch.bool))


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "linear": (lambda: linear(zeros(2, 4), zeros(3, 5)), r"weight \[3, 5\] does not fit rows"),
    "norm": (lambda: rms_norm(zeros(2, 4), zeros(5), 1e-5), r"weight \[5\] does not fit"),
    "gate": (lambda: silu_and_mul(zeros(2, 4), zeros(2, 5)), "must have one shape"),
    "rope heads": (
        lambda: apply_rope(zeros(2, 1, 4), zeros(3, 1, 4), zeros(2, 2), zeros(2, 2)),
        r"must both be \[rows, heads, dim\]",
    ),
    "rope angles": (
        lambda: apply_rope(zeros(2, 1, 4), zeros(2, 1, 4), zeros(2, 4), zeros(2, 4)),
        r"must be \[2, 4/2\]",
    ),
    "pools": (
        lambda: store_kv(zeros(8, 2, 6), zeros(8, 1, 6), ids(1), zeros(1, 2, 6), zeros(1, 2, 6)),
        r"must both be \[pool_rows, kv_heads, dim\]",
    ),
    "stored rows": (
        lambda: store_kv(zeros(8, 2, 6), zeros(8, 2, 6), ids(2), zeros(1, 2, 6), zeros(2, 2, 6)),
        r"must be \[2, 2, 6\]",
    ),
    "pool types": (
        lambda: attend(zeros(2, 4, 6), zeros(8, 2, 6), zeros(8, 2, 6).half(), layout()),
        "must both be .* of one type",
    ),
    "pool type": (
        lambda: attend(zeros(2, 4, 6), zeros(8, 2, 6).half(), zeros(8, 2, 6).half(), layout()),
        "pools of torch.float16 must be of q's torch.float32",
    ),
    "scale": (
        lambda: attend(
            zeros(2, 4, 6), zeros(8, 2, 6), zeros(8, 2, 6), layout(), scale=KvScale(0.5)
        ),
        "pools of torch.float32 have none",
    ),
    "no scale": (lambda: KvScale(0.0), "must be positive and finite"),
    "states": (
        lambda: merge_states(zeros(2, 4, 6), zeros(2, 4), zeros(2, 4, 5), zeros(2, 4)),
        r"must both be \[rows, heads, dim\]",
    ),
    "state lse": (
        lambda: merge_states(zeros(2, 4, 6), zeros(2, 4), zeros(2, 4, 6), zeros(2, 3)),
        r"\[2, 3\] \[rows, heads\]",
    ),
    "tail type": (
        lambda: attend(
            zeros(2, 4, 6).half(), zeros(8, 2, 6).half(), zeros(8, 2, 6).half(), layout(), tail()
        ),
        "a tail of torch.float32 must be of q's torch.float16",
    ),
    "starts": (
        lambda: AttentionLayout(ids(1, 2), 4, (1,), ids(1), 8, query_starts=ids(1)),
        "query_starts must be int64, one for each of the 1 requests and the end",
    ),
    "queries": (
        lambda: attend(zeros(3, 4, 6), zeros(8, 2, 6), zeros(8, 2, 6), layout()),
        r"q \[3, 4, 6\] must be \[2, q_heads, 6\]",
    ),
    "heads": (
        lambda: attend(zeros(2, 3, 6), zeros(8, 2, 6), zeros(8, 2, 6), layout()),
        "3 query heads cannot share 2 kv heads",
    ),
    "page": (
        lambda: attend(zeros(2, 4, 6), zeros(9, 2, 6), zeros(9, 2, 6), layout()),
        "9 pool rows are no whole number of pages of 4 rows",
    ),
    "uneven tail": (
        lambda: attend(
            zeros(3, 4, 6), zeros(8, 2, 6), zeros(8, 2, 6), layout((1, 2)), tail(queries=1)
        ),
        r"same number of query rows in every request, not \(1, 2\)",
    ),
    "tail dim": (
        lambda: attend(zeros(2, 4, 6), zeros(8, 2, 6), zeros(8, 2, 6), layout(), tail(dim=5)),
        r"must be \[2, rows, 2, 6\]",
    ),
    "tail queries": (
        lambda: attend(zeros(2, 4, 6), zeros(8, 2, 6), zeros(8, 2, 6), layout(), tail(queries=2)),
        "must have 1 rows per request",
    ),
    "table type": (
        lambda: AttentionLayout(zeros(1, 2), 4, (1,), ids(1), 8),
        "page_table must be .* int64",
    ),
    "lens": (lambda: AttentionLayout(ids(2, 2), 4, (1,), ids(1), 8), "one number >= 0 for each"),
    "visible": (lambda: AttentionLayout(ids(1, 2), 4, (2,), ids(1), 8), "visible must be int64"),
    "bound": (lambda: AttentionLayout(ids(1, 2), 4, (1,), ids(1), 9), "widen page_table"),
    "tail pair": (
        lambda: Tail(zeros(1, 3, 2, 6), zeros(1, 2, 2, 6), torch.ones(1, 1, 3, dtype=torch.bool)),
        "a tail's k and v must both be",
    ),
    "tail mask": (
        lambda: Tail(zeros(1, 3, 2, 6), zeros(1, 3, 2, 6), torch.ones(1, 1, 2, dtype=torch.bool)),
        r"mask must be \[1, queries, 3\] bool",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused(name: str) -> None:
    call, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        call()
