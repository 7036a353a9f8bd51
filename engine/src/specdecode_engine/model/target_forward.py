"""The target's forward over decode rows: a chain or a tree after each bonus token, up to logits."""

from dataclasses import dataclass

from specdecode_engine.model.eagle_head import AuxHiddenStates
from specdecode_engine.model.forward import ForwardInputs, ForwardOutputs
from specdecode_engine.model.kv_cache import KVCache
from specdecode_engine.model.kv_views import PagedView, TreeView
from specdecode_engine.model.llama import Llama


@dataclass(frozen=True, slots=True, eq=False)
class TargetForward:
    """Logits and, for a draft that reads them, aux hidden states of every node."""

    target: Llama
    pool: KVCache
    aux_spec: AuxHiddenStates

    def __call__(self, inputs: ForwardInputs) -> ForwardOutputs:
        """With a mask the nodes form trees and the layout shows what was committed before them."""
        assert inputs.slot_mapping is not None
        view: PagedView | TreeView = PagedView(self.pool, inputs.slot_mapping, inputs.layout)
        if inputs.mask is not None:
            view = TreeView(self.pool, inputs.slot_mapping, inputs.layout, inputs.mask)
        hidden = self.target.forward(inputs.ids, inputs.positions, view, self.aux_spec.layers)
        selected = self.aux_spec.select(hidden.last, hidden.aux_hidden_states)
        return ForwardOutputs(self.target.logits(hidden.last), selected)
