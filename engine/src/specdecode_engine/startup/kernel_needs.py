"""What decides which kernels an engine launches: its models, draft shapes, types and limits."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.shapes import DraftShape
from specdecode_engine.model.config_file import DTYPES
from specdecode_engine.model.draft_config import DraftConfig
from specdecode_engine.model.implementations import read_config
from specdecode_engine.startup.config import EngineConfig, StepSizes, draft_shapes
from specdecode_engine.startup.draft_models import draft_folder, read_draft


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

    @classmethod
    def of_config(cls, config: EngineConfig) -> "KernelNeeds":
        models: dict[str, DraftConfig] = {"target": config.target}
        if config.draft is not None:
            models["draft"] = config.draft
        return cls._of(config.boot, models, config.sizes, config.dtype, config.kv_dtype)

    @classmethod
    def of_boot(cls, boot: EngineBoot) -> "KernelNeeds":
        """Read config.json of the models only; a type that it leaves open is bfloat16."""
        speculation = boot.speculation
        target = read_config(Path(boot.model.path), boot.model.implementation)
        models: dict[str, DraftConfig] = {"target": target}
        folder = draft_folder(boot)
        if folder is not None:
            models["draft"] = read_draft(speculation.algorithm, folder, target)
        dtype = target.dtype or torch.bfloat16
        if boot.model.dtype != "auto":
            dtype = DTYPES[boot.model.dtype]
        kv_dtype = torch.float8_e4m3fn if boot.memory.kv_cache_dtype == "fp8_e4m3" else dtype
        sizes = StepSizes.over(draft_shapes(speculation), is_overlapped=True)
        return cls._of(boot, models, sizes, dtype, kv_dtype)

    @classmethod
    def _of(
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
        )

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """One request, an odd number of them, and the most."""
        return tuple(sorted({1, min(3, self.max_running), self.max_running}))
