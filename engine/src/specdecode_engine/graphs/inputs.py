"""The input tensors that all captured passes read: fixed addresses, filled anew before each run.

Rows beyond the batch are padding: token 0 at position 0, key and value to row 0 of page 0, which
belongs to nobody, seeing nothing. Letters: B batch, n rows per sequence.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from specdecode_engine.forward.passes import PassInputs
from specdecode_engine.graph_plan.passes import PassKind, PassShape, PassWidths
from specdecode_kernels import AttentionLayout


class InputBuffers:
    """One buffer per input, as large as the largest pass needs it.

    Args:
        shapes: every pass that may come to use them; without any they are empty.
        pages: entries of a page table, the same for every pass.
        dtype: of features and hidden states.
    """

    def __init__(
        self,
        shapes: Iterable[PassShape],
        widths: Mapping[PassKind, PassWidths],
        pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        known = list(shapes)
        self._widths = {kind: entry.hidden_in for kind, entry in widths.items()}
        self._page_size = page_size
        rows = max((shape.total_rows for shape in known), default=0)
        hidden = max((shape.total_rows * self._widths[shape.kind] for shape in known), default=0)
        mask = max((shape.total_rows * shape.seen for shape in known), default=0)
        # ids, positions, pool rows, visible rows
        self._indices = torch.zeros(4, rows, dtype=torch.int64, device=device)
        batch = max((shape.batch_size for shape in known), default=0)
        self._page_table = torch.zeros(batch, pages, dtype=torch.int64, device=device)
        self._hidden = torch.zeros(hidden, dtype=dtype, device=device)
        self._mask = torch.zeros(mask, dtype=torch.bool, device=device)
        self._loaded: tuple[AttentionLayout, PassShape] | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of all buffers."""
        buffers = (self._indices, self._page_table, self._hidden, self._mask)
        return sum(buffer.nbytes for buffer in buffers)

    def holds(self, shape: PassShape) -> bool:
        """Whether every buffer is large enough for a pass."""
        return (
            shape.total_rows <= self._indices.shape[1]
            and shape.batch_size <= self._page_table.shape[0]
            and shape.total_rows * self._widths[shape.kind] <= self._hidden.shape[0]
            and shape.total_rows * shape.seen <= self._mask.shape[0]
        )

    def view(self, shape: PassShape, like: AttentionLayout | None = None) -> PassInputs:
        """Show the buffers as the inputs of a pass.

        Args:
            like: cut the page tables to the width of these, which were loaded; otherwise they are
                as wide as they can be, and the longest sequence is bounded by that alone.
        """
        ids, positions, kv_rows, visible = self._indices[:, : shape.total_rows]
        pages = self._page_table.shape[1] if like is None else like.page_table.shape[1]
        layout = AttentionLayout(
            page_table=self._page_table[: shape.batch_size, :pages],
            page_size=self._page_size,
            query_lens=(shape.rows,) * shape.batch_size,
            visible=visible,
            max_visible=pages * self._page_size if like is None else like.max_visible,
        )
        is_step = shape.kind is PassKind.STEP
        return PassInputs(
            ids,
            positions,
            layout,
            None if is_step else kv_rows,
            self._hidden_of(shape),
            self._mask_of(shape),
            shape.first,
        )

    def load(self, shape: PassShape, inputs: PassInputs) -> None:
        """Fill in a batch of at most the pass's size, and padding behind it."""
        rows, total = inputs.batch_size * shape.rows, shape.total_rows
        ids, positions, kv_rows, _ = self._indices
        _fill(ids, inputs.ids, rows, total)
        _fill(positions, inputs.positions, rows, total)
        if inputs.kv_rows is not None:
            _fill(kv_rows, inputs.kv_rows, rows, total)
        hidden, mask = self._hidden_of(shape), self._mask_of(shape)
        if hidden is not None:
            assert inputs.hidden is not None
            _fill(hidden, inputs.hidden, rows, total)
        if mask is not None:
            assert inputs.mask is not None
            _fill(mask, inputs.mask, inputs.batch_size, shape.batch_size)
        self._load_layout(shape, inputs.layout)

    def clear(self) -> None:
        """Make every row padding, so that running a pass touches nobody's keys and values."""
        for buffer in (self._indices, self._page_table, self._hidden, self._mask):
            buffer.zero_()
        self._loaded = None

    def _load_layout(self, shape: PassShape, layout: AttentionLayout) -> None:
        """Fill in what is seen; the steps of a round share one layout, which is copied once."""
        key = PassShape(shape.kind, shape.batch_size, shape.rows)
        if self._loaded is not None and self._loaded[0] is layout and self._loaded[1] == key:
            return
        batch, pages = layout.page_table.shape
        # Entries behind these pages may be old: nobody sees the rows that they lead to.
        self._page_table[:batch, :pages].copy_(layout.page_table)
        self._page_table[batch : shape.batch_size].zero_()
        _fill(self._indices[3], layout.visible, batch * shape.rows, shape.total_rows)
        self._loaded = (layout, key)

    def _hidden_of(self, shape: PassShape) -> Tensor | None:
        width = self._widths[shape.kind]
        if not width:
            return None
        return self._hidden[: shape.total_rows * width].view(shape.total_rows, width)

    def _mask_of(self, shape: PassShape) -> Tensor | None:
        if not shape.seen:
            return None
        flat = self._mask[: shape.total_rows * shape.seen]
        return flat.view(shape.batch_size, shape.rows, shape.seen)


def _fill(buffer: Tensor, values: Tensor, count: int, total: int) -> None:
    """Copy `count` values and make those up to `total` zero."""
    buffer[:count].copy_(values)
    buffer[count:total].zero_()
