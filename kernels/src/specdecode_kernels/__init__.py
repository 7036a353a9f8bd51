"""The operations of the engine: one public function each, with a plain torch reference behind it.

Here live tensors and arithmetic, nothing above them: no model, no request, no configuration. An op
checks its arguments once, in `ops`; `reference` is the truth that every faster kernel is compared
with. On a CPU a float32 row comes out the same to the last bit whatever rows it is computed with:
text must not depend on the batch, on how a prompt is cut or on how deep one speculates. The kernels
in C sum in one order to that end; `reference.precision` says what the references do.
"""

from specdecode_kernels.backends import TORCH, AttentionBackend, Capturing, Choice, choose_backend
from specdecode_kernels.layout import AttentionLayout, KvScale, Tail
from specdecode_kernels.native.linear import PackedWeight
from specdecode_kernels.ops import (
    add_rms_norm,
    apply_rope,
    attend,
    attend_with_lse,
    linear,
    load_kv,
    merge_states,
    rms_norm,
    silu_and_mul,
    store_kv,
)
from specdecode_kernels.paths import move_kv, take_path
from specdecode_kernels.sampling import choose, penalise
from specdecode_kernels.sampling_rows import DraftedNodes, PenaltyRows, SamplingRows
from specdecode_kernels.trees import link_nodes, select_nodes, walk_chain, walk_tree

__all__ = [
    "TORCH",
    "AttentionBackend",
    "AttentionLayout",
    "Capturing",
    "Choice",
    "DraftedNodes",
    "KvScale",
    "PackedWeight",
    "PenaltyRows",
    "SamplingRows",
    "Tail",
    "add_rms_norm",
    "apply_rope",
    "attend",
    "attend_with_lse",
    "choose",
    "choose_backend",
    "linear",
    "link_nodes",
    "load_kv",
    "merge_states",
    "move_kv",
    "penalise",
    "rms_norm",
    "select_nodes",
    "silu_and_mul",
    "store_kv",
    "take_path",
    "walk_chain",
    "walk_tree",
]
