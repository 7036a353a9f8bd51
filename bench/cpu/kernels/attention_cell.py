"""One paged attention at the head sizes of an 8B Llama, and torch's own over rows in a row."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from specdecode_kernels import AttentionMetadata, Backend, CausalBounds, LayerKV, TreeKV

KV_HEADS, DIM = 8, 128


@dataclass(frozen=True, slots=True)
class Cell:
    """What one measurement is of."""

    batch: int
    queries: int
    context: int
    page_size: int = 16
    shared: int = 4  # query heads of a kv head
    is_tree: bool = False

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values that have to be read once."""
        return 2 * self.batch * self.context * KV_HEADS * DIM * torch.bfloat16.itemsize

    def __str__(self) -> str:
        """Describe it in words."""
        rows = f"{self.queries} {'node' if self.is_tree else 'row'}{'s' * (self.queries > 1)}"
        return (
            f"attention of {rows}, batch {self.batch}, context {self.context}, "
            f"page {self.page_size}, {self.shared} heads share"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Calls:
    """The cell's tensors, ready to be attended to."""

    q: torch.Tensor
    ours: Callable[[Backend], object]
    torch_unpaged: Callable[[], object]


def make_calls(cell: Cell, device: torch.device) -> Calls:
    """Draw the tensors; pages lie shuffled, every row sees what it would see when verifying."""

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, dtype=torch.bfloat16)

    metadata = _metadata(cell, device)
    pool_rows = (1 + metadata.page_table.numel()) * cell.page_size
    kv = LayerKV(normal(pool_rows, KV_HEADS, DIM), normal(pool_rows, KV_HEADS, DIM))
    heads = KV_HEADS * cell.shared
    q = normal(cell.batch * cell.queries, heads, DIM)
    tree_kv = None
    if cell.is_tree:
        mask = torch.ones(cell.batch, cell.queries, cell.queries, device=device).tril() > 0
        k, v = (normal(cell.batch, cell.queries, KV_HEADS, DIM) for _ in range(2))
        tree_kv = TreeKV(k, v, mask)
    k_row, v_row = (normal(cell.batch, KV_HEADS, cell.context, DIM) for _ in range(2))
    folded = q.view(cell.batch, cell.queries, heads, DIM).transpose(1, 2)
    return Calls(
        q,
        lambda ops: ops.attend(q, kv, metadata, tree_kv),
        lambda: scaled_dot_product_attention(folded, k_row, v_row, enable_gqa=True),
    )


def _metadata(cell: Cell, device: torch.device) -> AttentionMetadata:
    pages = -(-cell.context // cell.page_size)
    ids = 1 + torch.randperm(cell.batch * pages, device=device)
    ahead = 0 if cell.is_tree else cell.queries - 1
    kv_lens = torch.arange(cell.context - ahead, cell.context + 1, device=device)
    return AttentionMetadata(
        page_table=ids.view(cell.batch, pages),
        page_size=cell.page_size,
        qo_lens=(cell.queries,) * cell.batch,
        kv_lens=kv_lens.expand(cell.queries).repeat(cell.batch),
        max_kv_len=cell.context,
        cu_seqlens_q=torch.arange(cell.batch + 1, device=device) * cell.queries,
        causal_bounds=None if cell.is_tree else CausalBounds((cell.context,) * cell.batch),
    )
