"""How the rows of drafted blocks see keys and values: known positions in pages, and one another."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specdecode_engine.model.kv.kv_cache import KVCache, RotaryRows
from specdecode_kernels import DEFAULT_ATTENTION, AttentionMetadata, AttentionParams, TreeKV


@dataclass(frozen=True, slots=True, eq=False)
class BlockMasks:
    """Which rows of a block each of its rows sees, [batch, block, block] bool, by kind of layer."""

    everything: Tensor
    earlier: Tensor  # a row and those before it
    later: Tensor  # those after it

    @classmethod
    def make(cls, batch: int, block_size: int, device: torch.device) -> "BlockMasks":
        """Allocate masks for up to `batch` blocks."""
        square = torch.ones(batch, block_size, block_size, dtype=torch.bool, device=device)
        return cls(square, square.tril(), square.triu(1))

    def of(self, batch: int, rows: int) -> "BlockMasks":
        """Return the masks of the first rows of each block."""
        parts = (self.everything, self.earlier, self.later)
        return BlockMasks(*[part[:batch, :rows, :rows].contiguous() for part in parts])


@dataclass(frozen=True, slots=True, eq=False)
class BlockView:
    """Blocks of equally many rows; `layout` shows the known positions before each.

    Keys and values of the rows are not kept. A window reaches back from a row's own position: where
    rows see later ones too, attention to these is computed apart and merged, since a window of the
    kernels ends at the last row that is seen. A window is as large as a block at least, and nothing
    but windows and sinks distinguishes the layers.
    """

    pool: KVCache
    layout: AttentionMetadata
    masks: BlockMasks  # of these blocks
    causal_layers: Sequence[bool]

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        params: AttentionParams = DEFAULT_ATTENTION,
        rotary: RotaryRows | None = None,
    ) -> Tensor:
        if rotary is not None:
            q, k = self.pool.ops.apply_rope(q, k, *rotary)
        batch = len(self.layout.qo_lens)
        k, v = (part.reshape(batch, -1, *part.shape[1:]) for part in (k, v))
        if self.causal_layers[layer]:
            shown = TreeKV(k, v, self.masks.earlier)
        elif params.sliding_window is None:
            shown = TreeKV(k, v, self.masks.everything)
        else:
            return self._attend_both_ways(layer, q, k, v, params)
        return self.pool.attend(layer, q, self.layout, shown, params)

    def _attend_both_ways(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, params: AttentionParams
    ) -> Tensor:
        pool = self.pool
        before = TreeKV(k, v, self.masks.earlier)
        back = pool.attend_with_lse(layer, q, self.layout, before, params)
        nothing = replace(self.layout, kv_lens=torch.zeros_like(self.layout.kv_lens))
        after = TreeKV(k, v, self.masks.later)
        ahead = pool.attend_with_lse(layer, q, nothing, after, DEFAULT_ATTENTION)
        merged, _ = pool.ops.merge_states(*back, *ahead)
        return merged
