"""Loads a causal language model with transformers, tensor by tensor, and refuses what is not whole.

transformers renames, fuses and casts the tensors; each is read when it is needed, so that loading
takes the memory of the model and of the few tensors at work. (Files that transformers opens itself
stay mapped, and count as memory, as long as one tensor of them is in use.) No code of a checkpoint
ever runs, and pickles are read as weights only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from specdecode_engine.model.checkpoint import NAMED, TensorError, TensorStore
from specdecode_engine.model.mtp_layout import without_modules
from specdecode_engine.model.quantized.store import DequantizingStore, open_tensors
from specdecode_engine.model.store_part import StorePart
from specdecode_engine.model.transformers.attention import (
    IMPLEMENTATION,
    UnsupportedModel,
    register,
)
from specdecode_engine.model.transformers.config import TransformersConfig

WRAPPED = {
    r"^model\.language_model\.": "model.",
    r"^language_model\.model\.": "model.",
    r"^language_model\.lm_head\.": "lm_head.",
}
"""Names of a text model's tensors within a model for several kinds of input."""


def load_network(
    config: TransformersConfig, dtype: torch.dtype, device: torch.device
) -> tuple[Any, tuple[str, ...]]:
    """Return transformers' model with its weights in `dtype`, and the names of tensors left out.

    Raises:
        TensorError: tensors are missing, unknown, or of another shape than config.json describes.
    """
    from transformers.models.auto import auto_factory
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    register()
    text = config.copy_text()
    # AutoModelForCausalLM, which chooses the class so, demands a folder.
    choose: Any = auto_factory._get_model_class
    loader: Any = choose(text, MODEL_FOR_CAUSAL_LM_MAPPING)
    tensors = _read_later(config, dtype, _kept_wide(loader))
    try:
        network, report = loader.from_pretrained(
            None,
            state_dict=tensors,
            config=text,
            dtype=dtype,
            attn_implementation=IMPLEMENTATION,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below, with all their names
            **({"key_mapping": WRAPPED} if config.is_wrapped else {}),
        )
    except (OSError, SafetensorError) as error:
        raise TensorError(
            config.folder, f"unreadable ({error})", "download the checkpoint again"
        ) from error
    except (AttributeError, KeyError, ValueError, TypeError, ImportError) as error:
        raise _cannot_build(config, error) from error
    report["unexpected_keys"] -= _zero_biases(tensors, report["unexpected_keys"])
    left_out = _check(config, report)
    network.eval()
    _place(network, device)
    return network, left_out


@dataclass(frozen=True, slots=True)
class _LaterTensor:
    """A tensor that is read when transformers takes all of it, as it takes slices of files."""

    store: TensorStore
    name: str
    dtype: torch.dtype

    def __getitem__(self, index: object) -> Tensor:
        if index is not Ellipsis:
            raise TypeError(f"{self.name}: index is {index}; a tensor is read as a whole")
        tensor = torch.empty(self.store.tensors[self.name].shape, dtype=self.dtype)
        self.store.read(self.name, tensor)
        return tensor


def _read_later(
    config: TransformersConfig, dtype: torch.dtype, kept_wide: tuple[str, ...]
) -> dict[str, _LaterTensor]:
    """Return the tensors of a checkpoint by name.

    What transformers would cast is cast while it is read, and quantized weights are made in
    `dtype`: a tensor never exists twice.
    """
    store = without_modules(open_tensors(config.folder, config.quantization))
    source = store.source if isinstance(store, StorePart) else store
    quantized = source.weights if isinstance(source, DequantizingStore) else {}

    def dtype_of(name: str) -> torch.dtype:
        stored = store.tensors[name].dtype
        if name not in quantized and any(part in name for part in kept_wide):
            return stored
        return dtype if stored.is_floating_point or name in quantized else stored

    return {name: _LaterTensor(store, name, dtype_of(name)) for name in store.tensors}


def _kept_wide(model_class: Any) -> tuple[str, ...]:
    """Parts of the names of tensors that a class of transformers keeps in float32."""
    kept = (model_class._keep_in_fp32_modules, model_class._keep_in_fp32_modules_strict)
    return tuple(part for parts in kept for part in parts or ())


def _zero_biases(tensors: Mapping[str, _LaterTensor], unexpected: set[str]) -> set[str]:
    """Name the biases that a format adds to maps without one; of other values they would count."""
    return {
        name
        for name in unexpected & tensors.keys()
        if _is_extra_bias(tensors[name]) and not tensors[name][...].any()
    }


def _is_extra_bias(tensor: _LaterTensor) -> bool:
    store = tensor.store.source if isinstance(tensor.store, StorePart) else tensor.store
    return isinstance(store, DequantizingStore) and tensor.name in store.extra_biases


def _place(network: nn.Module, device: torch.device) -> None:
    """Move every tensor once, without gradients; what is tied stays tied."""
    moved: dict[int, nn.Parameter] = {}
    for module in network.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                if id(parameter) not in moved:
                    data = parameter.detach().to(device)
                    moved[id(parameter)] = nn.Parameter(data, requires_grad=False)
                module._parameters[name] = moved[id(parameter)]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(device)


def make_network(config: TransformersConfig, dtype: torch.dtype) -> Any:
    """Return transformers' model on the meta device: sizes without weights, from config.json."""
    from transformers import AutoModelForCausalLM

    register()
    maker: Any = AutoModelForCausalLM
    try:
        with torch.device("meta"):
            network = maker.from_config(
                config.copy_text(), dtype=dtype, attn_implementation=IMPLEMENTATION
            )
    except (AttributeError, KeyError, ValueError, TypeError, ImportError) as error:
        raise _cannot_build(config, error) from error
    network.requires_grad_(False)
    return network.eval()


def _cannot_build(config: TransformersConfig, error: Exception) -> UnsupportedModel:
    return UnsupportedModel(
        f"{config.folder}: transformers cannot build model type {config.model_type} with our "
        f"attention ({error!r}); use another model type"
    )


def _check(config: TransformersConfig, report: dict[str, Any]) -> tuple[str, ...]:
    unexpected = sorted(report["unexpected_keys"])
    missing = sorted(report["missing_keys"])
    mismatched = [
        f"{name} is {list(stored)} instead of {list(wanted)}"
        for name, stored, wanted in sorted(report["mismatched_keys"])
    ]
    folder = config.folder
    _raise_if(folder, "lacks", missing, "the files are incomplete, download them again")
    _raise_if(folder, "does not fit config.json:", mismatched, "take both from the same checkpoint")
    if config.is_wrapped:  # tensors of images and sounds
        return tuple(unexpected)
    _raise_if(folder, "holds, unused,", unexpected, "this is a checkpoint of another kind of model")
    return ()


def _raise_if(folder: Path, fault: str, names: list[str], remedy: str) -> None:
    if names:
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        raise TensorError(folder, f"{fault} {', '.join(names[:NAMED])}{more}", remedy)
