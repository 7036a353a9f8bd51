"""From token ids to logits: checkpoints, the Llama decoder, draft heads, cached keys and values.

Here live weights and the arithmetic on them. Nothing here chooses a token, knows a request or
keeps anything between two passes except in the pools that the caller hands in. Arithmetic worth a
kernel is in `specdecode_kernels`.
"""

from specdecode_engine.forward.eagle1 import Eagle1Head
from specdecode_engine.forward.eagle3 import Eagle3Head
from specdecode_engine.forward.eagle_head import Capture, DraftHidden, EagleHead
from specdecode_engine.forward.errors import CheckpointError
from specdecode_engine.forward.kv_pool import DraftScratch, KvPool
from specdecode_engine.forward.kv_view import KvView, PagedView, ScratchView
from specdecode_engine.forward.llama import Hidden, Llama
from specdecode_engine.forward.model_config import LlamaConfig

__all__ = [
    "Capture",
    "CheckpointError",
    "DraftHidden",
    "DraftScratch",
    "Eagle1Head",
    "Eagle3Head",
    "EagleHead",
    "Hidden",
    "KvPool",
    "KvView",
    "Llama",
    "LlamaConfig",
    "PagedView",
    "ScratchView",
]
