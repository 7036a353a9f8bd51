"""Loads the checkpoints of an engine."""

import logging
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from specdecode_engine.model.adapters.loading import LoadedAdapters, load_adapters
from specdecode_engine.model.checkpoint.checkpoint import OpenStore
from specdecode_engine.model.checkpoint.quantized.kv_scales import read_kv_scales
from specdecode_engine.model.checkpoint.record_tensors import tensor_bytes
from specdecode_engine.model.drafts.draft_exchange import staging_bytes
from specdecode_engine.model.implementations import load_model
from specdecode_engine.model.layers.linears import Linears
from specdecode_engine.model.target.language_model import LanguageModel
from specdecode_engine.process.start_progress import ShowProgress
from specdecode_engine.ranks import ALONE, Ranks
from specdecode_engine.startup.config import EngineConfig
from specdecode_engine.startup.draft_methods.method import LoadedDraft
from specdecode_engine.startup.draft_methods.registry import LoadModel, load_draft
from specdecode_kernels import FLOAT8, KvScale

log = logging.getLogger(__name__)


class LoadedModels(NamedTuple):
    """The loaded networks, how their linear maps keep their weights, and scales of the KV cache."""

    target: LanguageModel
    draft: LoadedDraft | None
    linears: Linears
    kv_scales: tuple[KvScale, ...]  # of the target's layers with attention; none: 1
    adapters: LoadedAdapters | None = None

    @property
    def weight_bytes(self) -> tuple[int, int]:
        """Bytes of the target's weights, with what adapters may take, and of the draft's alone."""
        own = tensor_bytes(self.target)
        pool = 0 if self.adapters is None else self.adapters.planned_bytes
        return own + pool, tensor_bytes((self.target, self.draft)) - own

    @property
    def exchange_bytes(self) -> int:
        """Bytes of the host for another draft that is read while this one is in use."""
        return staging_bytes(self.draft, self.target)

    @property
    def rotary_limits(self) -> tuple[int, ...]:
        """Lengths of text after which the target or the draft uses another rotary table."""
        networks = (self.target,) if self.draft is None else (self.target, self.draft)
        limits = {limit for one in networks for limit in one.rotary_limits.limits[:-1]}
        return tuple(sorted(limits))


def load_models(
    config: EngineConfig, progress: ShowProgress | None, open_store: OpenStore | None
) -> LoadedModels:
    """Load target and draft onto the engine's device.

    Args:
        progress: is called with bytes as they are read; None shows no bars.
        open_store: opens the tensors of the target and of a STANDALONE draft.
    """
    linears = Linears.of(config.kernels["target"], config.boot.model.quantization)
    loader = partial(model_loader, config, config.device, open_store, linears, progress=progress)
    load_target = loader(ranks=config.ranks)
    target = load_target(Path(config.boot.model.path), config.whole_target)
    draft = load_draft(config.boot, config.draft, target, loader(), linears, progress=progress)
    facts = linears.facts()
    log.info("linear maps: %s (%s)", facts["linears"], facts["linears_reason"])
    log.info("weights of linear maps: %s", facts["linear_weights"])
    adapters = load_adapters(Path(config.boot.model.path), target, config.boot.adapters)
    return LoadedModels(target, draft, linears, _kv_scales(config), adapters)


def _kv_scales(config: EngineConfig) -> tuple[KvScale, ...]:
    if config.kv_dtype != FLOAT8 or config.target.quantization is None:
        return ()
    return read_kv_scales(Path(config.boot.model.path), len(config.target.layer_map.layers))


def model_loader(
    config: EngineConfig,
    device: torch.device,
    open_store: OpenStore | None,
    linears: Linears,
    *,
    progress: ShowProgress | None = None,
    ranks: Ranks = ALONE,
) -> LoadModel:
    """Return what loads a language model of an engine.

    Args:
        ranks: among which it is divided; a draft is not.
    """
    return partial(
        load_model,
        dtype=config.dtype,
        device=device,
        context_length=config.context_length,
        progress=progress,
        open_store=open_store,
        linears=linears,
        ranks=ranks,
    )
