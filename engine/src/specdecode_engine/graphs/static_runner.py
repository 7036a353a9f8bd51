"""A runner for every device: the pass as it stands, on the padded buffers that a graph would use.

It does all that a CUDA graph needs around it, so that planning, padding, sharing of buffers and
swapping are the same code with and without a GPU. Only page tables are cut to what is in use, since
the plain attention gathers all that it is shown.
"""

from dataclasses import replace

from specdecode_engine.forward.passes import PassFunction, PassInputs, PassOutputs
from specdecode_engine.graph_plan.passes import PassShape
from specdecode_engine.graphs.inputs import InputBuffers
from specdecode_engine.graphs.outputs import OutputBuffers
from specdecode_kernels import AttentionLayout


class StaticRunner:
    """Runs a pass in place of a graph; making one runs it once, on padding alone."""

    def __init__(
        self, shape: PassShape, function: PassFunction, inputs: InputBuffers, outputs: OutputBuffers
    ) -> None:
        self.shape = shape
        self._function = function
        self._inputs = inputs
        self._outputs = outputs
        inputs.clear()
        padding = inputs.view(shape)
        self._run(replace(padding, layout=_narrow(padding.layout)))

    def run(self, inputs: PassInputs) -> PassOutputs:
        """Copy in, pad, compute, show the batch's own rows."""
        self._inputs.load(self.shape, inputs)
        self._run(self._inputs.view(self.shape, like=inputs.layout))
        return self._outputs.view(self.shape, inputs.batch_size)

    def _run(self, inputs: PassInputs) -> None:
        self._outputs.store(self.shape, self._function(inputs))


def _narrow(layout: AttentionLayout) -> AttentionLayout:
    """Show one page per sequence."""
    return replace(layout, page_table=layout.page_table[:, :1], max_visible=layout.page_size)
