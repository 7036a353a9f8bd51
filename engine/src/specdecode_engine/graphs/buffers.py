"""The input and output tensors that all graphs share: fixed addresses, filled before each replay.

Rows beyond the batch are padding: token 0 at position 0, key and value to row 0 of page 0, which no
request owns, seeing nothing. Letters: B batch, n rows per request.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from specdecode_engine.batch.shapes import ForwardKind, ForwardShape, ForwardWidths
from specdecode_engine.model.forward import ForwardInputs, ForwardOutputs
from specdecode_kernels import AttentionMetadata


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """What sizes buffers besides shapes; `dtype` is that of hidden states."""

    widths: Mapping[ForwardKind, ForwardWidths]
    pages: int  # entries of a page table, the same for every forward
    page_size: int
    dtype: torch.dtype

    def num_bytes(self, shapes: Iterable[ForwardShape]) -> int:
        """Bytes of the buffers for these forwards, before they are allocated."""
        return GraphBuffers(self, frozenset(shapes), torch.device("meta")).num_bytes


class GraphBuffers:
    """Inputs and outputs of every forward in `shapes`; without any they are empty."""

    def __init__(
        self, spec: BufferSpec, shapes: Collection[ForwardShape], device: torch.device
    ) -> None:
        self.inputs = InputBuffers(spec, shapes, device)
        self.outputs = OutputBuffers(spec, shapes, device)

    @property
    def num_bytes(self) -> int:
        return self.inputs.num_bytes + self.outputs.num_bytes

    def holds(self, shape: ForwardShape) -> bool:
        """Whether the buffers are large enough for a forward."""
        return self.inputs.holds(shape) and self.outputs.holds(shape)


class InputBuffers:
    """One buffer per input, as large as the largest forward needs it."""

    def __init__(
        self, spec: BufferSpec, shapes: Collection[ForwardShape], device: torch.device
    ) -> None:
        self._widths = {kind: entry.hidden_in for kind, entry in spec.widths.items()}
        self._page_size = spec.page_size
        rows = max((shape.total_rows for shape in shapes), default=0)
        hidden = max((shape.total_rows * self._widths[shape.kind] for shape in shapes), default=0)
        mask = max((shape.total_rows * shape.seen for shape in shapes), default=0)
        # ids, positions, slot_mapping, kv_lens
        self._indices = torch.zeros(4, rows, dtype=torch.int64, device=device)
        batch = max((shape.batch_size for shape in shapes), default=0)
        self._page_table = torch.zeros(batch, spec.pages, dtype=torch.int64, device=device)
        self._hidden = torch.zeros(hidden, dtype=spec.dtype, device=device)
        self._mask = torch.zeros(mask, dtype=torch.bool, device=device)
        self._loaded: tuple[AttentionMetadata, ForwardShape] | None = None

    @property
    def num_bytes(self) -> int:
        buffers = (self._indices, self._page_table, self._hidden, self._mask)
        return sum(buffer.nbytes for buffer in buffers)

    def holds(self, shape: ForwardShape) -> bool:
        return (
            shape.total_rows <= self._indices.shape[1]
            and shape.batch_size <= self._page_table.shape[0]
            and shape.total_rows * self._widths[shape.kind] <= self._hidden.shape[0]
            and shape.total_rows * shape.seen <= self._mask.shape[0]
        )

    def view(self, shape: ForwardShape, like: AttentionMetadata | None = None) -> ForwardInputs:
        """Return the buffers as the inputs of a forward.

        Args:
            like: cut the page tables to the width of these, which were loaded; otherwise they have
                their full width, which alone bounds the longest request.
        """
        ids, positions, slot_mapping, kv_lens = self._indices[:, : shape.total_rows]
        pages = self._page_table.shape[1] if like is None else like.page_table.shape[1]
        layout = AttentionMetadata(
            page_table=self._page_table[: shape.batch_size, :pages],
            page_size=self._page_size,
            qo_lens=(shape.rows,) * shape.batch_size,
            kv_lens=kv_lens,
            max_kv_len=pages * self._page_size if like is None else like.max_kv_len,
        )
        is_draft_step = shape.kind is ForwardKind.DRAFT_STEP
        return ForwardInputs(
            ids,
            positions,
            layout,
            None if is_draft_step else slot_mapping,
            self._hidden_of(shape),
            self._mask_of(shape),
            shape.first,
        )

    def load(self, shape: ForwardShape, inputs: ForwardInputs) -> None:
        """Copy in a batch of at most the shape's size, and pad the rest."""
        rows, total = inputs.batch_size * shape.rows, shape.total_rows
        ids, positions, slot_mapping, _ = self._indices
        _fill(ids, inputs.ids, rows, total)
        _fill(positions, inputs.positions, rows, total)
        if inputs.slot_mapping is not None:
            _fill(slot_mapping, inputs.slot_mapping, rows, total)
        hidden, mask = self._hidden_of(shape), self._mask_of(shape)
        if hidden is not None:
            assert inputs.hidden is not None
            _fill(hidden, inputs.hidden, rows, total)
        if mask is not None:
            assert inputs.mask is not None
            _fill(mask, inputs.mask, inputs.batch_size, shape.batch_size)
        self._load_layout(shape, inputs.layout)

    def clear(self) -> None:
        """Make every row padding, so that a forward writes to no request's keys and values."""
        for buffer in (self._indices, self._page_table, self._hidden, self._mask):
            buffer.zero_()
        self._loaded = None

    def _load_layout(self, shape: ForwardShape, layout: AttentionMetadata) -> None:
        """Copy in the page tables; the draft steps of a step share one layout, copied once."""
        key = ForwardShape(shape.kind, shape.batch_size, shape.rows)
        if self._loaded is not None and self._loaded[0] is layout and self._loaded[1] == key:
            return
        batch, pages = layout.page_table.shape
        # Entries after these pages may be stale: no row is visible through them.
        self._page_table[:batch, :pages].copy_(layout.page_table)
        self._page_table[batch : shape.batch_size].zero_()
        _fill(self._indices[3], layout.kv_lens, batch * shape.rows, shape.total_rows)
        self._loaded = (layout, key)

    def _hidden_of(self, shape: ForwardShape) -> Tensor | None:
        width = self._widths[shape.kind]
        if not width:
            return None
        return self._hidden[: shape.total_rows * width].view(shape.total_rows, width)

    def _mask_of(self, shape: ForwardShape) -> Tensor | None:
        if not shape.seen:
            return None
        flat = self._mask[: shape.total_rows * shape.seen]
        return flat.view(shape.batch_size, shape.rows, shape.seen)


class OutputBuffers:
    """Logits and hidden states of the largest forward of each kind.

    A forward overwrites the outputs of the previous forward of its kind. Separate outputs would
    take the memory of all batch sizes together; the copy into these buffers is part of the graph.
    """

    def __init__(
        self, spec: BufferSpec, shapes: Collection[ForwardShape], device: torch.device
    ) -> None:
        rows: dict[ForwardKind, int] = {}
        for shape in shapes:
            rows[shape.kind] = max(rows.get(shape.kind, 0), shape.output_rows)
        wide = torch.float64 if spec.dtype == torch.float64 else torch.float32
        self._logits = {
            kind: torch.zeros(count, spec.widths[kind].logits, dtype=wide, device=device)
            for kind, count in rows.items()
        }
        self._hidden = {
            kind: torch.zeros(count, spec.widths[kind].hidden_out, dtype=spec.dtype, device=device)
            for kind, count in rows.items()
        }

    @property
    def num_bytes(self) -> int:
        buffers = (*self._logits.values(), *self._hidden.values())
        return sum(buffer.nbytes for buffer in buffers)

    def holds(self, shape: ForwardShape) -> bool:
        logits = self._logits.get(shape.kind)
        return logits is not None and shape.output_rows <= logits.shape[0]

    def view(self, shape: ForwardShape, batch_size: int) -> ForwardOutputs:
        """Return the outputs of a forward for the first `batch_size` requests."""
        rows = shape.output_rows // shape.batch_size * batch_size
        return ForwardOutputs(self._logits[shape.kind][:rows], self._hidden_of(shape, rows))

    def store(self, shape: ForwardShape, outputs: ForwardOutputs) -> None:
        """Copy in the outputs of a forward, padding included."""
        own = self.view(shape, shape.batch_size)
        own.logits.copy_(outputs.logits)
        if own.hidden is not None:
            assert outputs.hidden is not None
            own.hidden.copy_(outputs.hidden)

    def _hidden_of(self, shape: ForwardShape, rows: int) -> Tensor | None:
        hidden = self._hidden[shape.kind]
        return hidden[:rows] if hidden.shape[1] else None


def _fill(buffer: Tensor, values: Tensor, count: int, total: int) -> None:
    """Copy `count` values and make those up to `total` zero."""
    buffer[:count].copy_(values)
    buffer[count:total].zero_()
