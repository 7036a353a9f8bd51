"""Which linear maps of a model LoRA adapters may change."""

from pathlib import Path

from specdecode_engine.model.checkpoint.adapters.adapter_file import AdapterBase
from specdecode_engine.model.checkpoint.checkpoint import TensorStore, TextModelStore
from specdecode_engine.model.checkpoint.config_file import CheckpointError
from specdecode_engine.model.layers.linears import MapKind, kind_of
from specdecode_engine.model.target.config import LlamaConfig
from specdecode_engine.model.target.language_model import LanguageModelConfig
from specdecode_engine.model.target.llama import EMBEDDING, HEAD, llama_shapes


def adapter_base(
    folder: Path, config: LanguageModelConfig, weights: TensorStore | None
) -> AdapterBase:
    """Describe a model to its adapters: attention, dense MLPs, embedding and head.

    Args:
        weights: of the whole checkpoint; None where only headers are known.

    Raises:
        CheckpointError: modules of transformers compute the model.
    """
    if not isinstance(config, LlamaConfig):
        raise CheckpointError(
            f"{folder}: the model is computed by modules of transformers, which take no LoRA "
            "adapters; merge the adapter into the model and serve the result"
        )
    if weights is not None and config.is_wrapped:
        weights = TextModelStore.of(weights)
    required, optional = llama_shapes(config)
    kinds = MapKind.LAYER, MapKind.HEAD
    names = {
        name.removesuffix(".weight"): name
        for name, shape in (required | optional).items()
        if len(shape) == 2 and (name == EMBEDDING or kind_of(name, shape) in kinds)
        if ".experts." not in name and name.endswith(".weight")
    }
    shapes = {module: (required | optional)[name] for module, name in names.items()}
    if weights is not None and HEAD not in weights.tensors:
        names[HEAD.removesuffix(".weight")] = EMBEDDING
    return AdapterBase(folder, shapes, EMBEDDING.removesuffix(".weight"), weights, names)
