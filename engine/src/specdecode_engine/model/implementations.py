"""Which implementation reads and computes a checkpoint: native, or the modules of transformers."""

from pathlib import Path

import torch

from specdecode_api.boot import ModelImplementation
from specdecode_engine.model.checkpoint.checkpoint import OpenStore
from specdecode_engine.model.checkpoint.config_file import ConfigFile
from specdecode_engine.model.drafts.draft_config import DraftConfig
from specdecode_engine.model.layers.linears import Linears
from specdecode_engine.model.target.config import LlamaConfig
from specdecode_engine.model.target.families import FAMILIES
from specdecode_engine.model.target.language_model import LanguageModel, LanguageModelConfig
from specdecode_engine.model.target.llama import Llama
from specdecode_engine.model.target.sharding import shard_config
from specdecode_engine.model.target.transformers_config import TransformersConfig
from specdecode_engine.model.transformers.divided_config import divide_transformers_config
from specdecode_engine.model.transformers.model import TransformersModel
from specdecode_engine.process.start_progress import ShowProgress
from specdecode_engine.ranks import ALONE, Ranks


def read_config(folder: Path, implementation: ModelImplementation = "auto") -> LanguageModelConfig:
    """Read a checkpoint's config for one implementation; auto prefers the native one.

    Raises:
        CheckpointError: the implementation cannot compute the model; the message has the reason.
    """
    return read_opened_config(ConfigFile.open(folder / "config.json"), implementation)


def read_opened_config(
    file: ConfigFile, implementation: ModelImplementation = "auto"
) -> LanguageModelConfig:
    """As `read_config`, of a file that was read before."""
    if implementation == "auto":
        names = file.get("architectures")
        is_native = isinstance(names, list) and len(names) == 1 and names[0] in FAMILIES
        implementation = "native" if is_native else "transformers"
    if implementation == "native":
        return LlamaConfig.read(file)
    return TransformersConfig.load(file.file.parent)


def implementation_of(config: DraftConfig) -> ModelImplementation:
    """Return which implementation a config was read for."""
    return "transformers" if isinstance(config, TransformersConfig) else "native"


def divide_config(config: LanguageModelConfig, ranks: int, folder: Path) -> LanguageModelConfig:
    """Return the config of the part of a model that one rank has.

    Heads, intermediate sizes, and with them the KV cache, are those of the part; all else, as the
    hidden size and the vocabulary, is that of the whole model.

    Raises:
        CannotDivide: its sizes cannot be divided among so many ranks.
    """
    if isinstance(config, LlamaConfig):
        return shard_config(config, ranks, folder)
    return divide_transformers_config(config, ranks)


def load_model(
    folder: Path,
    config: LanguageModelConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    context_length: int,
    progress: ShowProgress | None,
    open_store: OpenStore | None,
    linears: Linears,
    ranks: Ranks = ALONE,
) -> LanguageModel:
    """Load a checkpoint with the implementation that its config was read for.

    Args:
        config: of the whole model.
        open_store: opens the tensors of a native model; transformers reads the files itself.
        linears: makes the linear maps.
        ranks: among which the model is divided; see `divide_config`.
    """
    if isinstance(config, TransformersConfig):
        return TransformersModel.load(
            config,
            dtype=dtype,
            device=device,
            context_length=context_length,
            linears=linears,
            ranks=ranks,
        )
    return Llama.load(
        folder,
        config=config,
        dtype=dtype,
        device=device,
        context_length=context_length,
        progress=progress,
        open_store=open_store,
        linears=linears,
        ranks=ranks,
    )
