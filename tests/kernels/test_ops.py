"""Invalid arguments are rejected with an error that describes the problem."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from specdecode_kernels import (
    TORCH,
    AttentionMetadata,
    CausalBounds,
    KvScale,
    LayerKV,
    TreeKV,
)
from specdecode_kernels.testing import checked
from tests.kernels.low_rank import draw_factors, maps_of, rows_of

OPS = checked(TORCH)


def zeros(*shape: int) -> Tensor:
    return torch.zeros(*shape)


def ids(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=torch.int64)


def metadata(qo_lens: tuple[int, ...] = (1, 1), page_size: int = 4) -> AttentionMetadata:
    return AttentionMetadata(
        ids(len(qo_lens), 2), page_size, qo_lens, ids(sum(qo_lens)), 2 * page_size
    )


def tree_kv(batch: int = 2, queries: int = 1, dim: int = 6) -> TreeKV:
    kv = zeros(batch, 3, 2, dim)
    return TreeKV(kv, kv, torch.ones(batch, queries, 3, dtype=torch.bool))


MAPS = maps_of(TORCH, [draw_factors(4, 3, 2, 0)])
CACHE = LayerKV(zeros(8, 2, 6), zeros(8, 2, 6))
HALF_CACHE = LayerKV(zeros(8, 2, 6).half(), zeros(8, 2, 6).half())

REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "linear": (
        lambda: OPS.linear(zeros(2, 4), zeros(3, 5), None),
        r"weight \[3, 5\] does not fit rows",
    ),
    "low-rank rows": (
        lambda: OPS.add_low_rank(zeros(2, 4), zeros(2, 3), MAPS, rows_of([1, 1, 1])),
        "2 rows, and those with maps are of 3",
    ),
    "low-rank slot": (
        lambda: OPS.add_low_rank(zeros(2, 4), zeros(2, 3), MAPS, rows_of([2, 0])),
        "slot 2 is not below 2",
    ),
    "low-rank map": (
        lambda: OPS.add_low_rank(zeros(2, 5), zeros(2, 3), MAPS, rows_of([1, 0])),
        "map of slot 1 is not of 3 to 5",
    ),
    "norm": (lambda: OPS.rms_norm(zeros(2, 4), zeros(5), 1e-5), r"weight \[5\] does not fit"),
    "gate": (lambda: OPS.silu_and_mul(zeros(2, 4), zeros(2, 5)), "must have one shape"),
    "rope heads": (
        lambda: OPS.apply_rope(zeros(2, 1, 4), zeros(3, 1, 4), zeros(2, 2), zeros(2, 2)),
        r"must both be \[rows, heads, dim\]",
    ),
    "rope angles": (
        lambda: OPS.apply_rope(zeros(2, 1, 4), zeros(2, 1, 4), zeros(2, 4), zeros(2, 4)),
        r"must be \[2, 4/2\]",
    ),
    "pools": (
        lambda: LayerKV(zeros(8, 2, 6), zeros(8, 1, 6)),
        r"must both be \[pool_rows, kv_heads, dim\]",
    ),
    "stored rows": (
        lambda: OPS.store_kv(CACHE, ids(2), zeros(1, 2, 6), zeros(2, 2, 6)),
        r"must be \[2, 2, 6\]",
    ),
    "pool types": (
        lambda: LayerKV(zeros(8, 2, 6), zeros(8, 2, 6).half()),
        "must both be .* of one type",
    ),
    "pool type": (
        lambda: OPS.attend(zeros(2, 4, 6), HALF_CACHE, metadata(), None),
        "a cache of torch.float16 must be of q's torch.float32",
    ),
    "scale": (
        lambda: LayerKV(zeros(8, 2, 6), zeros(8, 2, 6), KvScale(0.5)),
        "a KV cache of torch.float32 has none",
    ),
    "no scale": (lambda: KvScale(0.0), "must be positive and finite"),
    "states": (
        lambda: OPS.merge_states(zeros(2, 4, 6), zeros(2, 4), zeros(2, 4, 5), zeros(2, 4)),
        r"must both be \[rows, heads, dim\]",
    ),
    "state lse": (
        lambda: OPS.merge_states(zeros(2, 4, 6), zeros(2, 4), zeros(2, 4, 6), zeros(2, 3)),
        r"\[2, 3\] \[rows, heads\]",
    ),
    "tree KV type": (
        lambda: OPS.attend(zeros(2, 4, 6).half(), HALF_CACHE, metadata(), tree_kv()),
        "tree KV of torch.float32 must be of q's torch.float16",
    ),
    "starts": (
        lambda: AttentionMetadata(ids(1, 2), 4, (1,), ids(1), 8, cu_seqlens_q=ids(1)),
        "cu_seqlens_q must be int64, one for each of the 1 requests and the end",
    ),
    "queries": (
        lambda: OPS.attend(zeros(3, 4, 6), CACHE, metadata(), None),
        r"q \[3, 4, 6\] must be \[2, q_heads, 6\]",
    ),
    "heads": (
        lambda: OPS.attend(zeros(2, 3, 6), CACHE, metadata(), None),
        "3 query heads cannot share 2 kv heads",
    ),
    "page": (
        lambda: OPS.attend(
            zeros(2, 4, 6), LayerKV(zeros(9, 2, 6), zeros(9, 2, 6)), metadata(), None
        ),
        "9 cache rows are not a multiple of the page size, 4",
    ),
    "uneven tree KV": (
        lambda: OPS.attend(zeros(3, 4, 6), CACHE, metadata((1, 2)), tree_kv(queries=1)),
        r"must have at least 2 rows per request",
    ),
    "tree KV dim": (
        lambda: OPS.attend(zeros(2, 4, 6), CACHE, metadata(), tree_kv(dim=5)),
        r"must be \[2, rows, 2, 6\]",
    ),
    "tree KV queries": (
        lambda: OPS.attend(zeros(2, 4, 6), CACHE, metadata(), tree_kv(queries=0)),
        "must have at least 1 rows per request",
    ),
    "table type": (
        lambda: AttentionMetadata(zeros(1, 2), 4, (1,), ids(1), 8),
        "page_table must be .* int64",
    ),
    "lens": (lambda: AttentionMetadata(ids(2, 2), 4, (1,), ids(1), 8), "one number >= 0 for each"),
    "kv_lens": (lambda: AttentionMetadata(ids(1, 2), 4, (2,), ids(1), 8), "kv_lens must be int64"),
    "bound": (lambda: AttentionMetadata(ids(1, 2), 4, (1,), ids(1), 9), "widen page_table"),
    "causal bounds": (
        lambda: AttentionMetadata(ids(1, 2), 4, (1,), ids(1), 8, causal_bounds=CausalBounds((9,))),
        r"causal_bounds \(9,\) must be one number up to max_kv_len 8 for each of 1 requests",
    ),
    "tree KV pair": (
        lambda: OPS.attend(
            zeros(2, 4, 6), CACHE, metadata(), tree_kv()._replace(v=zeros(2, 2, 2, 6))
        ),
        "tree KV: k and v must both be",
    ),
    "tree KV mask": (
        lambda: OPS.attend(
            zeros(2, 4, 6), CACHE, metadata(), tree_kv()._replace(tree_mask=torch.ones(2, 1, 2) > 0)
        ),
        r"tree_mask must be \[2, queries, 3\] bool",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused(name: str) -> None:
    call, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        call()
