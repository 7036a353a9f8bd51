"""From token ids to logits: checkpoints, the Llama decoder, draft heads, cached keys and values.

Here live weights and the arithmetic on them. Nothing here chooses a token, knows a request or
keeps anything between two passes except in the pools that the caller hands in. Arithmetic worth a
kernel is in `specdecode_kernels`.
"""

from specdecode_engine.model.config import AuxHiddenStates, LlamaConfig
from specdecode_engine.model.config_file import CheckpointError
from specdecode_engine.model.eagle import Eagle1Head, Eagle3Head, EagleHead
from specdecode_engine.model.kv_cache import DraftScratch, KVCache, KVView, PagedView, ScratchView
from specdecode_engine.model.llama import Llama

__all__ = [
    "AuxHiddenStates",
    "CheckpointError",
    "DraftScratch",
    "Eagle1Head",
    "Eagle3Head",
    "EagleHead",
    "KVCache",
    "KVView",
    "Llama",
    "LlamaConfig",
    "PagedView",
    "ScratchView",
]
