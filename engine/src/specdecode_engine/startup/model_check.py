"""Whether a target and a draft can be served, and in what memory, without reading weights.

Only config.json and the headers of safetensors files are read; without the latter, sizes follow
from config.json alone.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specdecode_api.speculation import Algorithm
from specdecode_engine.model import eagle_weights
from specdecode_engine.model.checkpoint import Checkpoint, Shape, has_tensors
from specdecode_engine.model.config import LlamaConfig
from specdecode_engine.model.config_file import CheckpointError, ConfigFile, DraftMismatch
from specdecode_engine.model.eagle_config import Eagle1Config, Eagle3Config
from specdecode_engine.model.kv_cache import kv_bytes
from specdecode_engine.model.llama import llama_shapes
from specdecode_engine.model.unsupported import refuse_unsupported
from specdecode_engine.startup.config import EAGLE_HEADS, DraftConfig
from specdecode_engine.startup.kernel_needs import algorithm_of

NATIVE = "native"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCheck:
    """One checkpoint. What is unknown, since the checkpoint cannot be served, is None."""

    path: Path
    model_type: str | None = None
    architecture: str | None = None
    implementation: str | None = None
    parameters: int | None = None
    weight_bytes: int | None = None  # in `dtype`
    dtype: torch.dtype | None = None
    kv_bytes_per_token: int | None = None  # keys and values of all layers
    kv_dtype: torch.dtype | None = None
    context_length: int | None = None
    has_tensors: bool = False  # whether names and shapes of tensors were compared with config.json
    reason: str | None = None  # why it cannot be served


@dataclass(frozen=True, slots=True)
class PairCheck:
    """A target, and perhaps a draft for it."""

    target: ModelCheck
    draft: ModelCheck | None = None
    algorithm: Algorithm = Algorithm.NONE

    @property
    def models(self) -> tuple[ModelCheck, ...]:
        return (self.target,) if self.draft is None else (self.target, self.draft)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the pair cannot be served; none if it can."""
        return tuple(one.reason for one in self.models if one.reason is not None)

    @property
    def is_served(self) -> bool:
        return not self.reasons


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """Types of weights and of the KV cache; None: those of the checkpoint and of the weights."""

    dtype: torch.dtype | None = None
    kv_dtype: torch.dtype | None = None


def check_pair(target: Path, draft: Path | None, options: CheckOptions) -> PairCheck:
    """Check a target, and a draft against it; never raises for a checkpoint."""
    try:
        refuse_unsupported(ConfigFile.open(target / "config.json"))
        config = LlamaConfig.load(target)
        checked = _check_model(target, config, options)
    except CheckpointError as error:
        # Whether a draft fits depends on the target.
        return PairCheck(_refused(target, error))
    if draft is None:
        return PairCheck(checked)
    try:
        algorithm = algorithm_of(draft)
        head = _read_draft(algorithm, draft, config)
        # A draft is computed in the target's type.
        options = CheckOptions(checked.dtype, options.kv_dtype)
        return PairCheck(checked, _check_model(draft, head, options, config), algorithm)
    except CheckpointError as error:
        return PairCheck(checked, _refused(draft, error))


def _read_draft(algorithm: Algorithm, folder: Path, target: LlamaConfig) -> DraftConfig:
    if algorithm is Algorithm.STANDALONE:
        draft = LlamaConfig.load(folder)
        if draft.vocab_size != target.vocab_size:
            raise DraftMismatch(
                f"draft {folder} has a vocabulary of {draft.vocab_size} tokens, the target of "
                f"{target.vocab_size}; use a draft that was made for this target"
            )
        return draft
    config: DraftConfig = EAGLE_HEADS[algorithm].read_config(folder, target)
    return config


def _check_model(
    folder: Path, config: DraftConfig, options: CheckOptions, target: LlamaConfig | None = None
) -> ModelCheck:
    file = ConfigFile.open(folder / "config.json")
    checkpoint = Checkpoint.open(folder) if has_tensors(folder) else None
    required, optional = _shapes(config, checkpoint, target)
    stored: Mapping[str, Shape] = required
    if checkpoint is not None:
        checkpoint.check(required, optional)
        known = {**optional, **required}
        is_tied = isinstance(config, LlamaConfig) and config.tie_word_embeddings
        kept = required if is_tied else known
        stored = {name: known[name] for name in checkpoint.tensors if name in kept}
    dtype = options.dtype or file.dtype() or _stored_dtype(checkpoint) or torch.float32
    kv_dtype = options.kv_dtype or dtype
    parameters = sum(
        math.prod(shape) for name, shape in stored.items() if name not in eagle_weights.ID_MAPS
    )
    return ModelCheck(
        path=folder,
        model_type=_text(file.get("model_type")),
        architecture=_architecture(file),
        implementation=NATIVE,
        parameters=parameters,
        weight_bytes=parameters * dtype.itemsize,
        dtype=dtype,
        kv_bytes_per_token=kv_bytes(config.layer_map, 1, kv_dtype),
        kv_dtype=kv_dtype,
        context_length=config.rope.trained_positions,
        has_tensors=checkpoint is not None,
    )


def _shapes(
    config: DraftConfig, checkpoint: Checkpoint | None, target: LlamaConfig | None
) -> tuple[Mapping[str, Shape], Mapping[str, Shape]]:
    """Return the required and the optional tensors."""
    if isinstance(config, LlamaConfig):
        return llama_shapes(config)
    assert target is not None
    if isinstance(config, Eagle1Config):
        return eagle_weights.eagle1_shapes(config)
    assert isinstance(config, Eagle3Config)
    names = () if checkpoint is None else checkpoint.tensors
    if checkpoint is not None:
        eagle_weights.check_width(config, checkpoint, target)
    prefix = eagle_weights.layer_prefix(names)
    return eagle_weights.eagle3_shapes(config, prefix, target.decoder.hidden_size)


def _stored_dtype(checkpoint: Checkpoint | None) -> torch.dtype | None:
    if checkpoint is None:
        return None
    types = [one.dtype for one in checkpoint.tensors.values() if one.dtype.is_floating_point]
    return types[0] if types else None


def _refused(folder: Path, error: CheckpointError) -> ModelCheck:
    try:
        file = ConfigFile.open(folder / "config.json")
    except CheckpointError:
        return ModelCheck(path=folder, reason=str(error))
    return ModelCheck(
        path=folder,
        model_type=_text(file.get("model_type")),
        architecture=_architecture(file),
        reason=str(error),
    )


def _architecture(file: ConfigFile) -> str | None:
    names: Any = file.get("architectures")
    return _text(names[0]) if isinstance(names, list) and names else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
