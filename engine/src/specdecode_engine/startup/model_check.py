"""Whether a target and a draft can be served, and in what memory, without reading weights.

Only config.json and the headers of safetensors files are read; without the latter, sizes follow
from config.json alone.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from specdecode_api.speculation import Algorithm
from specdecode_engine.batch.sampling_defaults import InvalidDefault, read_sampling_defaults
from specdecode_engine.model.checkpoint.checkpoint import (
    Shape,
    Shapes,
    StoredTensor,
    TensorStore,
    TextModelStore,
    has_tensors,
)
from specdecode_engine.model.checkpoint.config_file import CheckpointError, ConfigFile
from specdecode_engine.model.checkpoint.mtp_layout import without_modules
from specdecode_engine.model.checkpoint.pickle_store import has_pickles
from specdecode_engine.model.checkpoint.quantized.store import (
    DequantizingStore,
    open_checkpoint,
)
from specdecode_engine.model.checkpoint.quantized.weight import UNQUANTIZED_DTYPE
from specdecode_engine.model.drafts.draft_config import DraftConfig, HeadConfig, cached_token_bytes
from specdecode_engine.model.drafts.draft_head import HiddenStateHead
from specdecode_engine.model.drafts.eagle_weights import ID_MAPS
from specdecode_engine.model.drafts.mtp_config import count_modules
from specdecode_engine.model.implementations import divide_config, implementation_of, read_config
from specdecode_engine.model.layers.linears import Linears, kept_bytes, kind_of
from specdecode_engine.model.routed_experts import RoutedShape
from specdecode_engine.model.target.config import LlamaConfig
from specdecode_engine.model.target.families import refuse_unsupported
from specdecode_engine.model.target.language_model import LanguageModelConfig
from specdecode_engine.model.target.llama import llama_shapes
from specdecode_engine.model.target.sharding import CannotDivide, divided_header
from specdecode_engine.model.target.transformers_config import TransformersConfig
from specdecode_engine.model.transformers.division import Division
from specdecode_engine.model.transformers.loading import check_tensors, make_network, text_tensors
from specdecode_engine.model.transformers.model import TransformersModel
from specdecode_engine.startup.draft_methods.registry import (
    METHODS,
    algorithm_of,
    draft_warning,
    head_algorithm,
    read_draft,
)
from specdecode_kernels import TORCH, Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCheck:
    """One checkpoint. What is unknown, since the checkpoint cannot be served, is None.

    Sizes are those of one rank, but for the number of parameters.
    """

    path: Path
    model_type: str | None = None
    architecture: str | None = None
    implementation: str | None = None
    parameters: int | None = None
    weight_bytes: int | None = None  # in `dtype`, or of integers that it is rounded to
    quantization: str | None = None  # how weights are stored, None also if they are plain
    keeps_quantized: bool = False  # all that are stored in a form of the kernels
    dtype: torch.dtype | None = None
    kv_bytes_per_token: int | None = None  # keys and values of all layers
    kv_dtype: torch.dtype | None = None
    state_bytes_per_request: int | None = None  # of recurrent layers; None without any
    routed_bytes_per_token: int | None = None  # of the ids of experts; None without experts
    context_length: int | None = None
    eos_token_ids: tuple[int, ...] = ()  # of config.json and generation_config.json; of a target
    has_tensors: bool = False  # whether names and shapes of tensors were compared with config.json
    reason: str | None = None  # why it cannot be served
    warning: str | None = None  # why a draft seems to be made for another target
    ranks: int = 1  # among which it is divided


@dataclass(frozen=True, slots=True)
class PairCheck:
    """A target, and perhaps a draft for it."""

    target: ModelCheck
    draft: ModelCheck | None = None
    algorithm: Algorithm = Algorithm.NONE
    mtp: ModelCheck | None = None  # of the target's own MTP modules, where no draft was given

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
    """Types of weights and of the KV cache; None: those of the checkpoint and of the weights.

    `quantization` is `model.quantization`, `ranks` is `parallelism.tensor`.
    """

    dtype: torch.dtype | None = None
    kv_dtype: torch.dtype | None = None
    quantization: str = "auto"
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class _Head:
    """A kind of draft that reads hidden states of a target."""

    kind: type[HiddenStateHead[Any]]
    target: LanguageModelConfig


def check_pair(target: Path, draft: Path | None, options: CheckOptions) -> PairCheck:
    """Check a target, and a draft against it; never raises for a checkpoint."""
    try:
        config = _read_config(target)
        checked = _check_model(target, config, options)
    except CheckpointError as error:
        # Whether a draft fits depends on the target.
        return PairCheck(_refused(target, _without_target(target, error)))
    # A draft is computed in the target's type, and whole on every rank.
    ranks, options = options.ranks, replace(options, dtype=checked.dtype, ranks=1)
    if draft is None:
        return PairCheck(checked, mtp=_check_own_modules(target, config, options))
    try:
        algorithm = algorithm_of(draft)
        if ranks > 1 and algorithm is Algorithm.FROZEN_KV_MTP:
            raise CannotDivide(
                f"{draft}: the draft of FROZEN_KV_MTP reads all keys and values of the target, of "
                f"which each of {ranks} ranks has a part; set parallelism.tensor to 1, or use "
                "another draft"
            )
        found = _check_draft(draft, algorithm, config, options)
        read = read_draft(algorithm, draft, config)
        found = replace(found, warning=draft_warning(target, config, read))
        return PairCheck(checked, found, algorithm)
    except CheckpointError as error:
        return PairCheck(checked, _refused(draft, error))


def _without_target(folder: Path, error: CheckpointError) -> CheckpointError:
    """Return the error of a target, or that a draft was given as one."""
    if not (folder / "config.json").is_file() or (algorithm := head_algorithm(folder)) is None:
        return error
    return CheckpointError(
        f"{folder} is a draft of algorithm {algorithm}, not a target; give its target first"
    )


def _check_draft(
    folder: Path, algorithm: Algorithm, target: LanguageModelConfig, options: CheckOptions
) -> ModelCheck:
    if not algorithm.may_draft_with_target:  # of which a part alone is computed
        refuse_unsupported(ConfigFile.open(folder / "config.json"))
    read = read_draft(algorithm, folder, target)
    kind = METHODS[algorithm].head
    return _check_model(folder, read, options, None if kind is None else _Head(kind, target))


def _check_own_modules(
    folder: Path, target: LanguageModelConfig, options: CheckOptions
) -> ModelCheck | None:
    """Check the MTP modules of a target, as a chain where there are several; None: it has none."""
    try:
        modules = count_modules(folder)
        if not modules:
            return None
        algorithm = Algorithm.MTP if modules == 1 else Algorithm.MTP_CHAIN
        return _check_draft(folder, algorithm, target, options)
    except CheckpointError as error:
        return _refused(folder, error)


def _read_config(folder: Path) -> LanguageModelConfig:
    refuse_unsupported(ConfigFile.open(folder / "config.json"))
    config = read_config(folder)
    try:
        read_sampling_defaults(folder)
    except InvalidDefault as error:
        raise CheckpointError(str(error)) from None
    return config


def _check_model(
    folder: Path,
    config: DraftConfig,
    options: CheckOptions,
    head: _Head | None = None,
) -> ModelCheck:
    file = ConfigFile.open(folder / "config.json")
    checkpoint = _open_tensors(folder, head)
    dtype = options.dtype or config.dtype or file.dtype()
    dtype = dtype or _stored_dtype(checkpoint) or _dtype_without_tensors(config)
    kv_dtype = options.kv_dtype or dtype
    if isinstance(config, TransformersConfig):
        network = make_network(config, dtype)
        if checkpoint is not None:
            check_tensors(network, text_tensors(config, checkpoint)[0])
        shapes = {name: tuple(one.shape) for name, one in network.named_parameters()}
        own = _of_rank_through_transformers(config, network, dtype, options.ranks)
        routed = RoutedShape.of(TransformersModel.audited(config, network))
    else:
        shapes = _parameters(config, checkpoint, head)
        routed = None if isinstance(config, HeadConfig) else RoutedShape.read(config)
    part = (
        config if isinstance(config, HeadConfig) else divide_config(config, options.ranks, folder)
    )
    linears = Linears.of(Choice(TORCH, "", None), options.quantization)
    layers = None if isinstance(part, HeadConfig) else part.delta_layers
    stored = _own_tensors(config, checkpoint)
    if not isinstance(config, TransformersConfig):
        own = _of_rank(part, shapes)
    headers = {name: _header(stored.get(name), shape, dtype) for name, shape in own.items()}
    return ModelCheck(
        path=folder,
        model_type=_text(file.get("model_type")),
        architecture=file.architecture or None,
        implementation=implementation_of(config),
        parameters=sum(math.prod(shape) for shape in shapes.values()),
        weight_bytes=sum(kept_bytes(name, one, dtype, linears) for name, one in headers.items()),
        quantization=None if config.quantization is None else config.quantization.description,
        keeps_quantized=_keeps_quantized(stored, headers, linears),
        dtype=dtype,
        kv_bytes_per_token=cached_token_bytes(part, kv_dtype),
        kv_dtype=kv_dtype,
        state_bytes_per_request=None if layers is None else layers.state_bytes(dtype),
        routed_bytes_per_token=None if routed is None else routed.token_bytes,
        context_length=config.rope.trained_positions,
        eos_token_ids=() if isinstance(config, HeadConfig) else config.eos_token_ids,
        has_tensors=checkpoint is not None,
        ranks=options.ranks,
    )


def _of_rank(part: DraftConfig, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
    """Return the shapes of what one rank has of these parameters."""
    if not isinstance(part, LlamaConfig):
        return shapes
    required, optional = llama_shapes(part)
    every = required | optional
    return {name: every[name] for name in shapes}


def _of_rank_through_transformers(
    config: TransformersConfig, network: Any, dtype: torch.dtype, ranks: int
) -> Mapping[str, Shape]:
    """Return the shapes of what one rank has of the parameters of a network."""
    part: Any = network if ranks == 1 else Division.of(config, network, dtype, ranks).network
    shapes = {name: tuple(one.shape) for name, one in part.named_parameters()}
    head, embedding = part.get_output_embeddings().weight, part.get_input_embeddings().weight
    if head is not embedding and len(head) % ranks == 0:
        (name,) = (name for name, one in part.named_parameters() if one is head)
        shapes[name] = len(head) // ranks, *head.shape[1:]
    return shapes


def _header(stored: StoredTensor | None, shape: Shape, dtype: torch.dtype) -> StoredTensor:
    """Describe what a rank has of a parameter; without tensors it is of type `dtype`."""
    if stored is None:
        return StoredTensor(Path(), shape, dtype)
    return divided_header(stored, shape)


def _own_tensors(config: DraftConfig, checkpoint: TensorStore | None) -> Mapping[str, StoredTensor]:
    """Return the tensors of a model that the engine computes itself, by parameters' names."""
    if checkpoint is None or not isinstance(config, LlamaConfig):
        return {}
    return (TextModelStore.of(checkpoint) if config.is_wrapped else checkpoint).tensors


def _keeps_quantized(
    stored: Mapping[str, StoredTensor], headers: Mapping[str, StoredTensor], linears: Linears
) -> bool:
    """Whether a checkpoint has quantized weights that kernels take, and all of them are kept.

    Args:
        headers: of what one rank has.
    """
    quantized = [name for name, one in stored.items() if one.quantized is not None]
    own = {name: headers.get(name, stored[name]) for name in quantized}
    return bool(own) and all(
        linears.keeps(one, kind_of(name, one.shape)) for name, one in own.items()
    )


def _open_tensors(folder: Path, head: _Head | None) -> TensorStore | None:
    """Open what the engine would read; None where the folder has config.json alone."""
    if not has_tensors(folder) and not has_pickles(folder):
        return None
    store = open_checkpoint(folder) if head is None else head.kind.open_tensors(folder)
    if isinstance(store, DequantizingStore):
        store.check_scales()
    return store


def _parameters(
    config: LlamaConfig | HeadConfig,
    checkpoint: TensorStore | None,
    head: _Head | None,
) -> dict[str, Shape]:
    """Name the parameters; names and shapes of tensors must be those of config.json."""
    required, optional = _shapes(config, checkpoint, head)
    stored = required
    if checkpoint is not None:
        if isinstance(config, LlamaConfig) and config.is_wrapped:
            checkpoint = TextModelStore.of(checkpoint)
        if head is None:
            checkpoint = without_modules(checkpoint)
            checkpoint.check(required, optional)
        else:
            head.kind.check(config, checkpoint, head.target)
        is_tied = isinstance(config, LlamaConfig) and config.tie_word_embeddings
        kept = required if is_tied else {**optional, **required}
        stored = {name: kept[name] for name in checkpoint.tensors if name in kept}
    return {name: shape for name, shape in stored.items() if name not in ID_MAPS}


def _shapes(
    config: LlamaConfig | HeadConfig, checkpoint: TensorStore | None, head: _Head | None
) -> tuple[Shapes, Shapes]:
    """Return the required and the optional tensors."""
    if isinstance(config, LlamaConfig):
        return llama_shapes(config)
    assert head is not None
    return head.kind.shapes(config, () if checkpoint is None else checkpoint.tensors, head.target)


def _stored_dtype(checkpoint: TensorStore | None) -> torch.dtype | None:
    if checkpoint is None:
        return None
    types = [one.dtype for one in checkpoint.tensors.values() if one.dtype.is_floating_point]
    return types[0] if types else None


def _dtype_without_tensors(config: DraftConfig) -> torch.dtype:
    return torch.float32 if config.quantization is None else UNQUANTIZED_DTYPE


def _refused(folder: Path, error: CheckpointError) -> ModelCheck:
    try:
        file = ConfigFile.open(folder / "config.json")
    except CheckpointError:
        return ModelCheck(path=folder, reason=str(error))
    return ModelCheck(
        path=folder,
        model_type=_text(file.get("model_type")),
        architecture=file.architecture or None,
        reason=str(error),
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
