"""Loads a causal language model with transformers, tensor by tensor, and refuses what is not whole.

transformers renames, fuses and casts the tensors; each is read when it is needed, so that loading
takes the memory of the model and of the few tensors at work. (Files that transformers opens itself
stay mapped, and count as memory, as long as one tensor of them is in use.) No code of a checkpoint
ever runs, and pickles are read as weights only.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from specdecode_engine.model.checkpoint.checkpoint import (
    TensorError,
    TensorStore,
    TextModelStore,
    list_names,
)
from specdecode_engine.model.checkpoint.mtp_layout import without_modules
from specdecode_engine.model.target.transformers_config import TransformersConfig, UnsupportedModel
from specdecode_engine.model.transformers.attention import IMPLEMENTATION, register
from specdecode_engine.model.transformers.parameter_sources import expected_tensors


def load_network(
    config: TransformersConfig,
    dtype: torch.dtype,
    device: torch.device,
    store: TensorStore,
    used: frozenset[str],
) -> Any:
    """Return transformers' model with its weights in `dtype`.

    Args:
        store: the tensors of the text model.
        used: what `check_tensors` returned for them.

    Raises:
        TensorError: tensors cannot be read, or have values that the model does not use.
    """
    from transformers.models.auto import auto_factory
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    register()
    text = config.copy_text()
    # AutoModelForCausalLM, which chooses the class so, demands a folder.
    choose: Any = auto_factory._get_model_class
    loader: Any = choose(text, MODEL_FOR_CAUSAL_LM_MAPPING)
    tensors = _read_later(store, dtype, _kept_wide(loader))
    _refuse_values(config, tensors, store.tensors.keys() - used)
    try:
        network, report = loader.from_pretrained(
            None,
            state_dict={name: tensors[name] for name in used},
            config=text,
            dtype=dtype,
            attn_implementation=IMPLEMENTATION,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (OSError, SafetensorError) as error:
        raise TensorError(
            config.folder, f"unreadable ({error})", "download the checkpoint again"
        ) from error
    _refuse_incomplete(config, report)
    network.eval()
    _place(network, device)
    return network


def text_tensors(
    config: TransformersConfig, store: TensorStore
) -> tuple[TensorStore, tuple[str, ...]]:
    """Return the tensors of the text model alone, and the names of those for other inputs.

    Those of MTP modules are left to drafts.
    """
    skipped: tuple[str, ...] = ()
    if config.is_wrapped:
        store = text = TextModelStore.of(store)
        skipped = text.skipped
    return without_modules(store), skipped


def check_tensors(network: Any, store: TensorStore) -> frozenset[str]:
    """Compare the stored tensors with those that a network's parameters are made of.

    Returns:
        The names of the tensors that are used. Others have no effect, or are zeros that a format
        adds.

    Raises:
        TensorError: tensors are missing, unknown, or of another shape than config.json describes.
        UnsupportedModel: config.json describes no tensors.
    """
    stored = {name: tensor.shape for name, tensor in store.tensors.items()}
    try:
        required, optional = expected_tensors(network, stored)
    except Exception as error:  # conversions fail in any way
        raise UnsupportedModel(
            f"the tensors of a {type(network).__name__} cannot be named from config.json "
            f"({error!r}); correct it, or use another model type"
        ) from error
    store.check(required, optional)
    return frozenset(required)


@dataclass(frozen=True, slots=True)
class _LaterTensor:
    """A tensor that is read when transformers takes all of it, as it takes slices of files.

    transformers reads in threads. One tensor is read at a time, as what is mapped and converted
    meanwhile counts as memory.
    """

    store: TensorStore
    name: str
    dtype: torch.dtype
    lock: Lock  # of the store

    def __getitem__(self, index: object) -> Tensor:
        if index is not Ellipsis:
            raise TypeError(f"{self.name}: index is {index}; a tensor is read as a whole")
        tensor = torch.empty(self.store.tensors[self.name].shape, dtype=self.dtype)
        with self.lock:
            self.store.read(self.name, tensor)
        return tensor


def _read_later(
    store: TensorStore, dtype: torch.dtype, kept_wide: tuple[str, ...]
) -> dict[str, _LaterTensor]:
    """Return the tensors of a store by name.

    What transformers would cast is cast while it is read, and quantized weights are made in
    `dtype`: a tensor never exists twice.
    """

    def dtype_of(name: str) -> torch.dtype:
        stored = store.tensors[name].dtype
        if any(part in name for part in kept_wide):
            return stored
        return dtype if stored.is_floating_point else stored

    lock = Lock()
    return {name: _LaterTensor(store, name, dtype_of(name), lock) for name in store.tensors}


def _kept_wide(model_class: Any) -> tuple[str, ...]:
    """Parts of the names of tensors that a class of transformers keeps in float32."""
    kept = (model_class._keep_in_fp32_modules, model_class._keep_in_fp32_modules_strict)
    return tuple(part for parts in kept for part in parts or ())


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
    """Return transformers' model on the meta device: sizes without weights, from config.json.

    Raises:
        UnsupportedModel: config.json describes none.
    """
    from transformers import AutoModelForCausalLM

    register()
    maker: Any = AutoModelForCausalLM
    try:
        with torch.device("meta"):
            network = maker.from_config(
                config.copy_text(), dtype=dtype, attn_implementation=IMPLEMENTATION
            )
    except Exception as error:  # config.json may be anything, and modules fail in any way
        raise UnsupportedModel(
            f"{config.folder}: transformers cannot build model type {config.model_type} from "
            f"config.json ({error!r}); correct it, or use another model type"
        ) from error
    network.requires_grad_(False)
    return network.eval()


def _refuse_values(
    config: TransformersConfig, tensors: Mapping[str, _LaterTensor], unused: Collection[str]
) -> None:
    """Raise if an unused bias has values: AutoGPTQ adds biases of zeros to maps without one."""
    biases = (name for name in sorted(unused) if name.endswith(".bias"))
    faulty = [name for name in biases if tensors[name][...].any()]
    if faulty:
        raise TensorError(
            config.folder,
            f"holds, unused, {list_names(faulty)}",
            "this is a checkpoint of another kind of model",
        )


def _refuse_incomplete(config: TransformersConfig, report: Mapping[str, Any]) -> None:
    """Raise if transformers would compute with numbers of its own, whatever the reason."""
    left_out = sorted({*report["missing_keys"], *report["unexpected_keys"]})
    if left_out:
        raise UnsupportedModel(
            f"{config.folder}: transformers cannot load {list_names(left_out)} of model type "
            f"{config.model_type}; it is not supported"
        )
