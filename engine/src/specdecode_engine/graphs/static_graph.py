"""A stand-in for a CUDA graph on any device: the eager forward on the buffers of a graph.

Planning, padding, sharing of buffers and swapping are then the same code with and without a GPU.
Only page tables are cut to the pages in use, since torch attention gathers all that it gets.
"""

from dataclasses import replace

from specdecode_engine.batch.shapes import ForwardShape
from specdecode_engine.graphs.buffers import GraphBuffers
from specdecode_engine.model.forward import ForwardFunction, ForwardInputs, ForwardOutputs
from specdecode_kernels import AttentionMetadata


class StaticGraph:
    """Runs a forward in place of a graph; its constructor runs it once, on padding only."""

    def __init__(
        self, shape: ForwardShape, function: ForwardFunction, buffers: GraphBuffers
    ) -> None:
        self.shape = shape
        self._function = function
        self._buffers = buffers
        buffers.inputs.clear()
        padding = buffers.inputs.view(shape)
        self._run(replace(padding, layout=_first_page(padding.layout)))

    def run(self, inputs: ForwardInputs) -> ForwardOutputs:
        """Copy in and pad, compute, return views of the batch's own rows."""
        self._buffers.inputs.load(self.shape, inputs)
        self._run(self._buffers.inputs.view(self.shape, like=inputs.layout))
        return self._buffers.outputs.view(self.shape, inputs.batch_size)

    def _run(self, inputs: ForwardInputs) -> None:
        self._buffers.outputs.store(self.shape, self._function(inputs))


def _first_page(layout: AttentionMetadata) -> AttentionMetadata:
    """Cut page tables to one page per request."""
    return replace(layout, page_table=layout.page_table[:, :1], max_kv_len=layout.page_size)
