"""Loads a causal language model with transformers, tensor by tensor, and refuses what is not whole.

No code of a checkpoint ever runs, and pickles are read as weights only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from specdecode_engine.model.checkpoint import NAMED, Checkpoint, TensorError
from specdecode_engine.model.quantized.store import DequantizingStore
from specdecode_engine.model.transformers.attention import (
    IMPLEMENTATION,
    UnsupportedModel,
    register,
)
from specdecode_engine.model.transformers.config import TransformersConfig, read_text_config

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
    source: dict[str, Any] = {"pretrained_model_name_or_path": config.folder}
    tensors = _read_later(config, dtype)
    if tensors is not None:
        source = {"pretrained_model_name_or_path": None, "state_dict": tensors}
    text = read_text_config(config.folder)
    # AutoModelForCausalLM, which chooses the class so, demands a folder.
    choose: Any = auto_factory._get_model_class
    loader: Any = choose(text, MODEL_FOR_CAUSAL_LM_MAPPING)
    try:
        network, report = loader.from_pretrained(
            **source,
            config=text,
            dtype=dtype,
            attn_implementation=IMPLEMENTATION,
            local_files_only=True,
            trust_remote_code=False,
            weights_only=True,
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
    report["unexpected_keys"] -= _zero_biases(tensors or {}, report["unexpected_keys"])
    left_out = _check(config, report)
    network.eval()
    _place(network, device)
    return network, left_out


@dataclass(frozen=True, slots=True)
class _LaterTensor:
    """A tensor that is read when transformers takes all of it, as it takes slices of files."""

    store: DequantizingStore
    name: str
    dtype: torch.dtype

    def __getitem__(self, index: object) -> Tensor:
        if index is not Ellipsis:
            raise TypeError(f"{self.name}: index is {index}; a quantized tensor is read as a whole")
        tensor = torch.empty(self.store.tensors[self.name].shape, dtype=self.dtype)
        self.store.read(self.name, tensor)
        return tensor


def _read_later(config: TransformersConfig, dtype: torch.dtype) -> dict[str, _LaterTensor] | None:
    """Return the plain tensors of a quantized checkpoint; weights are made in `dtype` when read."""
    if config.quantization is None:
        return None
    store = DequantizingStore.of(Checkpoint.open_quantized(config.folder), config.quantization)
    return {
        name: _LaterTensor(store, name, dtype if name in store.weights else stored.dtype)
        for name, stored in store.tensors.items()
    }


def _zero_biases(tensors: Mapping[str, _LaterTensor], unexpected: set[str]) -> set[str]:
    """Name the biases that a format adds to maps without one; of other values they would count."""
    return {
        name
        for name in unexpected & tensors.keys()
        if name in tensors[name].store.extra_biases and not tensors[name][...].any()
    }


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
                read_text_config(config.folder), dtype=dtype, attn_implementation=IMPLEMENTATION
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
