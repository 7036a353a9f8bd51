"""Attention of decode, verify, tree and extend, beside torch's own over rows lying in a row."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from kernels.both_ways import Backends, Case, run
from specdecode_kernels import AttentionBackend, AttentionLayout, Tail, attend

Q_HEADS, KV_HEADS, DIM = 32, 8, 128


@dataclass(frozen=True, slots=True)
class Size:
    """One measurement, at the head sizes of an 8B Llama."""

    batch: int
    queries: int
    context: int
    page_size: int = 16
    is_tree: bool = False

    def __str__(self) -> str:
        """The name of its case."""
        kind = "tree " if self.is_tree else ""
        return (
            f"{kind}batch={self.batch} queries={self.queries} context={self.context} "
            f"page={self.page_size}"
        )

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values that have to be read once."""
        return 2 * self.batch * self.context * KV_HEADS * DIM * torch.bfloat16.itemsize


def sizes() -> Iterator[Size]:
    """Decode is one query row, a verify some; then trees, then prompts."""
    for batch in (1, 8, 64):
        for context in (1024, 4096, 32768):
            for page_size in (1, 16):
                if batch * context <= 1 << 18:
                    yield from (
                        Size(batch, queries, context, page_size) for queries in (1, 2, 4, 8, 16)
                    )
    yield from (Size(batch, 16, 4096, is_tree=True) for batch in (1, 8))
    yield Size(1, 2048, 4096)
    yield Size(4, 512, 4096)


def cases(device: torch.device) -> Iterator[Case]:
    """Every size; bytes are those of the keys and values."""
    backends = Backends(device, DIM)
    for size in sizes():
        yield _case(size, backends, device)


def _case(size: Size, backends: Backends, device: torch.device) -> Case:
    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, dtype=torch.bfloat16)

    layout = _layout(size, device)
    pool_rows = (1 + layout.page_table.numel()) * size.page_size
    k_pool, v_pool = (normal(pool_rows, KV_HEADS, DIM) for _ in range(2))
    q = normal(size.batch * size.queries, Q_HEADS, DIM)
    tail = None
    if size.is_tree:
        mask = torch.ones(size.batch, size.queries, size.queries, device=device).tril() > 0
        k, v = (normal(size.batch, size.queries, KV_HEADS, DIM) for _ in range(2))
        tail = Tail(k, v, mask)

    def call(backend: AttentionBackend) -> torch.Tensor:
        return attend(q, k_pool, v_pool, layout, tail, backend=backend)

    peers = {"torch_unpaged_unmasked": _unpaged(size, q, normal)}
    other = backends.flashinfer
    if other is not None:
        peers["flashinfer"] = lambda: call(other)
    return Case(str(size), size.kv_bytes, lambda: call(backends.for_(q)), peers)


def _layout(size: Size, device: torch.device) -> AttentionLayout:
    pages = -(-size.context // size.page_size)
    ids = 1 + torch.randperm(size.batch * pages, device=device)
    ahead = 0 if size.is_tree else size.queries - 1
    visible = torch.arange(size.context - ahead, size.context + 1, device=device)
    return AttentionLayout(
        ids.view(size.batch, pages),
        size.page_size,
        (size.queries,) * size.batch,
        visible.expand(size.queries).repeat(size.batch),
        size.context,
        torch.arange(size.batch + 1, device=device) * size.queries,
    )


def _unpaged(
    size: Size, q: torch.Tensor, normal: Callable[..., torch.Tensor]
) -> Callable[[], object]:
    k, v = (normal(size.batch, KV_HEADS, size.context, DIM) for _ in range(2))
    folded = q.view(size.batch, size.queries, Q_HEADS, DIM).transpose(1, 2)
    return lambda: scaled_dot_product_attention(folded, k, v, enable_gqa=True)


if __name__ == "__main__":
    sys.exit(run("attend", cases))
