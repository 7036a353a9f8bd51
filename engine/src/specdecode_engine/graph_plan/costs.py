"""What captured passes cost: bytes exactly where they are our own, estimated where they are CUDA's.

All passes share their inputs, their outputs and one memory pool, so a further graph costs little
more than its own nodes. Their size is taken from vLLM's issue 11349: 0.21 GiB for 35 graphs of a
model of 16 layers. What capturing really took is measured and replaces the estimate.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from specdecode_engine.graph_plan.passes import PassKind, PassShape, PassWidths

GRAPH_BYTES_PER_LAYER = 3 << 17  # 0.375 MiB
SECONDS_PER_PASS = 0.1
"""Before the first is measured; published: 0.06 s (vLLM issue 22897) to 0.4 s (11349)."""

_INDEX_BYTES = 8


@dataclass(frozen=True, slots=True)
class Cost:
    """Memory and time of capturing something."""

    num_bytes: int = 0
    seconds: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.num_bytes + other.num_bytes, self.seconds + other.seconds)


@dataclass(frozen=True, slots=True)
class CostModel:
    """Estimates; `itemsize` is that of the weights, in bytes."""

    widths: Mapping[PassKind, PassWidths]
    pages: int  # entries of a page table
    itemsize: int
    seconds_per_pass: float = SECONDS_PER_PASS

    def of_pass(self, shape: PassShape) -> Cost:
        """Estimate one graph more."""
        layers = self.widths[shape.kind].layers + 1  # the embedding and the head
        return Cost(GRAPH_BYTES_PER_LAYER * layers, self.seconds_per_pass)

    def shared_bytes(self, shapes: Iterable[PassShape]) -> int:
        """Count the buffers that all these passes share, and the largest one's activations."""
        known = list(shapes)
        if not known:
            return 0
        inputs = sum(
            max(counted(self, shape) for shape in known)
            for counted in (CostModel._index_bytes, CostModel._mask_bytes, CostModel._hidden_bytes)
        )
        kinds = {shape.kind for shape in known}
        outputs = sum(
            max(self._output_bytes(shape) for shape in known if shape.kind is kind)
            for kind in kinds
        )
        return inputs + outputs + max(self._activation_bytes(shape) for shape in known)

    def total_bytes(self, shapes: Iterable[PassShape]) -> int:
        """Count everything that capturing all these passes takes."""
        every = set(shapes)
        return self.shared_bytes(every) + sum(self.of_pass(shape).num_bytes for shape in every)

    def _index_bytes(self, shape: PassShape) -> int:
        return _INDEX_BYTES * (4 * shape.total_rows + shape.batch_size * self.pages)

    def _mask_bytes(self, shape: PassShape) -> int:
        return shape.total_rows * shape.seen

    def _hidden_bytes(self, shape: PassShape) -> int:
        return shape.total_rows * self.widths[shape.kind].hidden_in * self.itemsize

    def _output_bytes(self, shape: PassShape) -> int:
        widths = self.widths[shape.kind]
        logits = widths.logits * max(4, self.itemsize)
        return shape.output_rows * (logits + widths.hidden_out * self.itemsize)

    def _activation_bytes(self, shape: PassShape) -> int:
        """The most that is alive at once: a layer's, or the logits in two types."""
        widths = self.widths[shape.kind]
        layer = shape.total_rows * (8 * widths.hidden + 3 * widths.intermediate) * self.itemsize
        logits = shape.output_rows * widths.logits * (4 + self.itemsize)
        return max(layer, logits)
