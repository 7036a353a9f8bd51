"""Our own Triton kernels, on a GPU or, interpreted, on CPU."""

import torch
from torch import Tensor

from specdecode_kernels.backends.backend import Capturing
from specdecode_kernels.layout import AttentionLayout, KvScale, Tail
from specdecode_kernels.triton import attend, merge_splits, merge_states, store_kv
from specdecode_kernels.triton.tiles import Tile, choose_splits, choose_tile

WORKSPACE_BYTES = 64 << 20


class TritonBackend:
    """Run the kernels. Its workspace never grows or moves, so CUDA graphs may hold it.

    Whoever shares one instance runs on one stream: two launches at once would write one workspace.
    """

    name = "triton"
    capturing = Capturing(True)

    def __init__(
        self,
        device: torch.device,
        *,
        splits: int | None = None,
        workspace_bytes: int = WORKSPACE_BYTES,
    ) -> None:
        """Allocate the workspace; `splits` fixes what is otherwise chosen by shapes."""
        self._splits = splits
        self._processors = _processors(device)
        self._workspace = torch.empty(workspace_bytes // 4, dtype=torch.float32, device=device)

    def store_kv(
        self, k_pool: Tensor, v_pool: Tensor, rows: Tensor, k: Tensor, v: Tensor, scale: KvScale
    ) -> None:
        """Write new rows into the pools, in place."""
        store_kv.store_kv(k_pool, v_pool, rows, k, v, scale)

    def attend(
        self,
        q: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        layout: AttentionLayout,
        tail: Tail | None,
        scale: KvScale,
    ) -> Tensor:
        """Attend in one launch, or in splits that a second one merges."""
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        self._attend(q, k_pool, v_pool, layout, tail, scale, out, None)
        return out

    def attend_with_lse(
        self,
        q: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        layout: AttentionLayout,
        tail: Tail | None,
        scale: KvScale,
    ) -> tuple[Tensor, Tensor]:
        """Attend, and write the log-sum-exp that the softmax has at hand."""
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
        self._attend(q, k_pool, v_pool, layout, tail, scale, out, lse)
        return out, lse

    def merge_states(
        self, out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Merge in one launch."""
        return merge_states.merge_states(out_a, lse_a, out_b, lse_b)

    def _attend(
        self,
        q: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        layout: AttentionLayout,
        tail: Tail | None,
        scale: KvScale,
        out: Tensor,
        lse: Tensor | None,
    ) -> None:
        if not q.shape[0]:
            return
        rows, q_heads, dim = q.shape
        pairs = max(layout.query_lens) * (q_heads // k_pool.shape[1])
        tile = choose_tile(pairs, dim, q.element_size())
        splits = self._split(q, k_pool.shape[1], layout, pairs, tile)
        if splits == 1:
            whole = None if lse is None else lse[None]
            attend.attend(q, k_pool, v_pool, layout, tail, scale, tile, out[None], whole)
            return
        part_floats = splits * rows * q_heads * dim
        parts = self._workspace[:part_floats].view(splits, rows, q_heads, dim)
        lses = self._workspace[part_floats:][: splits * rows * q_heads].view(splits, rows, q_heads)
        attend.attend(q, k_pool, v_pool, layout, tail, scale, tile, parts, lses)
        merge_splits.merge_splits(parts, lses, out, lse)

    def _split(
        self, q: Tensor, kv_heads: int, layout: AttentionLayout, pairs: int, tile: Tile
    ) -> int:
        programs = len(layout.query_lens) * kv_heads * -(-pairs // tile.pairs)
        wanted = self._splits
        if wanted is None:
            wanted = choose_splits(programs, layout.max_visible, tile.rows, self._processors)
        rows, q_heads, dim = q.shape
        return max(1, min(wanted, self._workspace.numel() // (rows * q_heads * (dim + 1))))


def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count
