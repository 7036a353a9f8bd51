"""The target's pass of a decode round: a chain or a tree behind each bonus token, up to logits."""

from dataclasses import dataclass

from specdecode_engine.forward.eagle_head import Capture
from specdecode_engine.forward.kv_pool import KvPool
from specdecode_engine.forward.kv_view import PagedView, TreeView
from specdecode_engine.forward.llama import Llama
from specdecode_engine.forward.passes import PassInputs, PassOutputs


@dataclass(frozen=True, slots=True, eq=False)
class TargetPass:
    """Logits and, for a draft that reads them, features of every node."""

    target: Llama
    pool: KvPool
    capture: Capture

    def __call__(self, inputs: PassInputs) -> PassOutputs:
        """With a mask the nodes form trees and the layout shows what was committed before them."""
        assert inputs.kv_rows is not None
        view: PagedView | TreeView = PagedView(self.pool, inputs.kv_rows, inputs.layout)
        if inputs.mask is not None:
            view = TreeView(self.pool, inputs.kv_rows, inputs.layout, inputs.mask)
        hidden = self.target.forward(inputs.ids, inputs.positions, view, self.capture.layers)
        features = self.capture.pick(hidden.last, hidden.captured)
        return PassOutputs(self.target.logits(hidden.last), features)
