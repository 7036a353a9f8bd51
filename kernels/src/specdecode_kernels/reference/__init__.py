"""Each op as one would write it on a board, in plain torch. Arguments are trusted: `ops` checks."""

from specdecode_kernels.reference.attention import attend, attend_with_lse
from specdecode_kernels.reference.choosing import choose, perturb
from specdecode_kernels.reference.elementwise import (
    add_rms_norm,
    apply_rope,
    rms_norm,
    silu_and_mul,
)
from specdecode_kernels.reference.filters import filter_logits
from specdecode_kernels.reference.linear import linear
from specdecode_kernels.reference.merge_states import merge_states
from specdecode_kernels.reference.noise import gumbel_noise
from specdecode_kernels.reference.paths import move_kv, take_path
from specdecode_kernels.reference.penalties import penalise
from specdecode_kernels.reference.pool import load_rows, store_kv
from specdecode_kernels.reference.trees import link_nodes, select_nodes
from specdecode_kernels.reference.walks import walk_chain, walk_tree

__all__ = [
    "add_rms_norm",
    "apply_rope",
    "attend",
    "attend_with_lse",
    "choose",
    "filter_logits",
    "gumbel_noise",
    "linear",
    "link_nodes",
    "load_rows",
    "merge_states",
    "move_kv",
    "penalise",
    "perturb",
    "rms_norm",
    "select_nodes",
    "silu_and_mul",
    "store_kv",
    "take_path",
    "walk_chain",
    "walk_tree",
]
