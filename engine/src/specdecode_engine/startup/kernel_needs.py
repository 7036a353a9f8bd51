"""What decides which kernels an engine launches: its models, draft shapes, types and limits."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.shapes import DraftShape, StepSizes
from specdecode_engine.model.drafts.draft_config import DraftConfig
from specdecode_engine.model.target.config import LlamaConfig
from specdecode_kernels import INT4, INT8, Precision

ROUNDED: Mapping[str, tuple[Precision, ...]] = {
    "int8": (INT8,),
    "int4": (INT4, INT8),
}
"""What weights become, by `model.quantization`; the head has 8 bits."""


@dataclass(frozen=True, slots=True)
class KernelNeeds:
    """What decides which kernels an engine launches."""

    models: Mapping[str, DraftConfig]  # "target" and perhaps "draft"
    shapes: tuple[DraftShape, ...]
    path_length: int
    dtype: torch.dtype
    kv_dtype: torch.dtype
    page_size: int
    max_running: int
    chunk_tokens: int
    rounded: tuple[Precision, ...] = ()  # what weights are rounded to
    kept: tuple[Precision, ...] = ()  # of quantized checkpoints, as they are stored
    ranks: int = 1  # whose parts the layers of the target add

    @classmethod
    def of(
        cls,
        boot: EngineBoot,
        models: Mapping[str, DraftConfig],
        sizes: StepSizes,
        dtype: torch.dtype,
        kv_dtype: torch.dtype,
    ) -> "KernelNeeds":
        return cls(
            models,
            tuple(sizes.shapes.values()),
            sizes.max_path_length,
            dtype,
            kv_dtype,
            boot.memory.page_size,
            boot.scheduling.max_running_requests,
            boot.scheduling.chunked_prefill_tokens,
            ROUNDED.get(boot.model.quantization, ()),
            _kept(boot.model.quantization, models.values()),
            boot.parallelism.tensor,
        )

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """The forms of quantized weights."""
        return tuple(dict.fromkeys((*self.rounded, *self.kept)))

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """One request, an odd number of them, and the most."""
        return tuple(sorted({1, min(3, self.max_running), self.max_running}))


def _kept(quantization: str, models: Iterable[DraftConfig]) -> tuple[Precision, ...]:
    """Return the forms of quantized weights that models of our own keep."""
    own = [one.quantization for one in models if isinstance(one, LlamaConfig)]
    stored = [] if quantization == "none" else [one for one in own if one is not None]
    return tuple(form for one in stored for form in one.format.precisions)
