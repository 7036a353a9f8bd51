"""Which part of which adapted map a tensor of an adapter is, by its name."""

from collections.abc import Collection
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from specdecode_engine.model.checkpoint.checkpoint import TensorError

PREFIX = "base_model.model."
_MERGE = "merge the adapter into its base model and serve the result"


class FactorRole(Enum):
    """What a tensor is of an adapted map; values are the ends of names."""

    A = "lora_A.weight"  # [rank, inputs]
    B = "lora_B.weight"  # [outputs, rank]
    EMBEDDING_A = "lora_embedding_A"  # [rank, vocab]
    EMBEDDING_B = "lora_embedding_B"  # [hidden, rank]
    BASE = "base_layer.weight"  # the base's own weight


class TensorName(NamedTuple):
    """The module that a tensor belongs to, and its role there."""

    path: str  # as the file has it, without the prefix
    module: str  # as a checkpoint of the text model has it
    role: FactorRole


REFUSED = (
    (".lora_magnitude_vector", f"DoRA is not supported; {_MERGE}"),
    (".lora_B.bias", f"biases of adapters (lora_bias) are not supported; {_MERGE}"),
    (".lora_diag", f"KaSA is not supported; {_MERGE}"),
    (".token_adapter.", f"trained tokens are not supported; {_MERGE}"),
    (".experts.", f"adapters of experts are not supported; {_MERGE}"),
    (".bias.", f"trained biases are not supported; {_MERGE}"),
)
"""Parts of names, the first that is found counts, and remedies."""
_FULL = f"full tensors (modules_to_save, added tokens) are not supported; {_MERGE}"
_UNKNOWN = "save the adapter again with save_pretrained of peft"


def read_name(file: Path, name: str, modules: Collection[str]) -> TensorName:
    """Find the place of a tensor.

    Args:
        file: that contains it, for errors.
        modules: of the base that may be adapted.

    Raises:
        TensorError: the tensor has no place, or is of a kind that is not supported.
    """
    path = name.removeprefix(PREFIX)
    if path == name:
        raise TensorError(file, f"{name} does not begin with {PREFIX}", _UNKNOWN)
    remedy = next((remedy for part, remedy in REFUSED if part in f"{path}."), None)
    if remedy is not None:
        raise TensorError(file, f"{name} cannot be applied", remedy)
    role = next((role for role in FactorRole if path.endswith(f".{role.value}")), None)
    if role is None:
        is_full = module_of(path.removesuffix(".weight")) in modules or ".lora_" not in path
        raise TensorError(file, f"{name} is not a factor of LoRA", _FULL if is_full else _UNKNOWN)
    path = path.removesuffix(f".{role.value}")
    module = module_of(path)
    if module not in modules:
        remedy = "the adapter belongs to another model, or adapts a part that is not supported"
        raise TensorError(file, f"{name}: the base has no linear map {module}", remedy)
    return TensorName(path, module, role)


def module_of(path: str) -> str:
    """Return the path that a module has in the text model alone.

    A model of text and images has its layers under `model.language_model.`, or, in older releases
    of transformers, everything of the text under `language_model.`.
    """
    for prefix in ("model.language_model.", "language_model.model."):
        if path.startswith(prefix):
            return "model." + path.removeprefix(prefix)
    return path.removeprefix("language_model.")
