"""From token ids to logits: checkpoints, the Llama decoder, draft heads, cached keys and values.

Here live weights and the arithmetic on them. Nothing here chooses a token, knows a request or
keeps anything between two passes except in the pools that the caller hands in. Arithmetic worth a
kernel is in `specdecode_kernels`.
"""

from specdecode_engine.model.eagle1 import Eagle1Head
from specdecode_engine.model.eagle3 import Eagle3Head
from specdecode_engine.model.eagle_head import AuxHiddenStates, DraftHidden, EagleHead
from specdecode_engine.model.errors import CheckpointError
from specdecode_engine.model.kv_cache import DraftScratch, KVCache
from specdecode_engine.model.kv_views import KVView, PagedView, ScratchView
from specdecode_engine.model.llama import Hidden, Llama
from specdecode_engine.model.model_config import LlamaConfig

__all__ = [
    "AuxHiddenStates",
    "CheckpointError",
    "DraftHidden",
    "DraftScratch",
    "Eagle1Head",
    "Eagle3Head",
    "EagleHead",
    "Hidden",
    "KVCache",
    "KVView",
    "Llama",
    "LlamaConfig",
    "PagedView",
    "ScratchView",
]
