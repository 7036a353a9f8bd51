"""The output tensors that all captured passes write, by kind of pass: fixed addresses."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from specdecode_engine.forward.passes import PassOutputs
from specdecode_engine.graph_plan.passes import PassKind, PassShape, PassWidths


class OutputBuffers:
    """Logits and hidden states of the largest pass of each kind.

    What a pass left is overwritten by the next of its kind. Were they every graph's own, they would
    take as much as all batch sizes together; the copy into these is part of the graph.
    """

    def __init__(
        self,
        shapes: Iterable[PassShape],
        widths: Mapping[PassKind, PassWidths],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        rows: dict[PassKind, int] = {}
        for shape in shapes:
            rows[shape.kind] = max(rows.get(shape.kind, 0), shape.output_rows)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        self._logits = {
            kind: torch.zeros(count, widths[kind].logits, dtype=wide, device=device)
            for kind, count in rows.items()
        }
        self._hidden = {
            kind: torch.zeros(count, widths[kind].hidden_out, dtype=dtype, device=device)
            for kind, count in rows.items()
        }

    @property
    def num_bytes(self) -> int:
        """Bytes of all buffers."""
        buffers = (*self._logits.values(), *self._hidden.values())
        return sum(buffer.nbytes for buffer in buffers)

    def holds(self, shape: PassShape) -> bool:
        """Whether the buffers of its kind are large enough for a pass."""
        logits = self._logits.get(shape.kind)
        return logits is not None and shape.output_rows <= logits.shape[0]

    def view(self, shape: PassShape, batch_size: int) -> PassOutputs:
        """Show what a pass left for the first `batch_size` sequences."""
        rows = shape.output_rows // shape.batch_size * batch_size
        return PassOutputs(self._logits[shape.kind][:rows], self._hidden_of(shape, rows))

    def store(self, shape: PassShape, outputs: PassOutputs) -> None:
        """Keep what a pass left, padding included."""
        own = self.view(shape, shape.batch_size)
        own.logits.copy_(outputs.logits)
        if own.hidden is not None:
            assert outputs.hidden is not None
            own.hidden.copy_(outputs.hidden)

    def _hidden_of(self, shape: PassShape, rows: int) -> Tensor | None:
        hidden = self._hidden[shape.kind]
        return hidden[:rows] if hidden.shape[1] else None
