"""Implementations of the ops on cached keys and values, and the choice between them.

A backend is an object that whoever holds the pool passes along; nothing here remembers one. What
not every machine has, Triton and FlashInfer, is imported when its backend is built.
"""

from specdecode_kernels.backends.backend import AttentionBackend, Capturing
from specdecode_kernels.backends.choice import Choice, choose_backend
from specdecode_kernels.backends.torch_backend import TORCH, TorchBackend

__all__ = ["TORCH", "AttentionBackend", "Capturing", "Choice", "TorchBackend", "choose_backend"]
