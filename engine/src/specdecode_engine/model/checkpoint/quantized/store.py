"""Opens a checkpoint whose weights may be quantized as one table of plain tensors."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from specdecode_engine.model.checkpoint.checkpoint import (
    QUANTIZED_DTYPES,
    Checkpoint,
    Part,
    Shape,
    StoredQuantization,
    StoredTensor,
    TensorError,
    TensorStore,
)
from specdecode_engine.model.checkpoint.config_file import ConfigFile
from specdecode_engine.model.checkpoint.pickle_store import open_unquantized
from specdecode_engine.model.checkpoint.quantized.config import Quantization, read_quantization
from specdecode_engine.model.checkpoint.quantized.packing import E8M0_NAN, exponent_scales
from specdecode_engine.model.checkpoint.quantized.weight import (
    MISFIT,
    NAN_OF_FLOAT8,
    UNQUANTIZED_DTYPE,
    Headers,
    Parts,
    QuantizedWeight,
)
from specdecode_kernels import QuantizedTensor

log = logging.getLogger(__name__)

UNUSED = tuple(
    f".{value}_{kind}"
    for value in ("input", "output", "activation", "k", "v", "q", "k_cache", "v_cache", "kv_cache")
    for kind in ("scale", "zero_point", "global_scale")
)
"""Scales of activations, which are not quantized, and of the KV cache; see `kv_scales.py`."""
SCALES = frozenset({"scale", "scales", "scale_2", "global_scale", "pre_quant_scale"})
"""The parts of a weight that must be finite."""
EMBEDDINGS = ("embed_tokens", "embed_in", "tok_embeddings", "word_embeddings", "wte")
DAMAGED = "download the checkpoint again, or quantize the model again"


@dataclass(frozen=True, slots=True)
class DequantizingStore:
    """The tensors of a quantized checkpoint under plain names; reading dequantizes weights.

    Weights that kernels take as they are stored may be read from their header instead.
    """

    source: Checkpoint
    weights: Mapping[str, QuantizedWeight]
    tensors: Mapping[str, StoredTensor]
    unused: tuple[str, ...]  # tensors of activations and of the KV cache
    extra_biases: Mapping[str, Shape]  # AutoGPTQ writes zeros where a map has no bias

    @classmethod
    def of(cls, source: Checkpoint, quantization: Quantization) -> "DequantizingStore":
        """Find the quantized weights; nothing but headers is read.

        Raises:
            TensorError: a tensor of a weight is missing, or of the wrong shape.
        """
        headers = Headers(source.folder, source.tensors)
        weights = {weight.name: weight for weight in quantization.format.find(headers)}
        packed = {name for weight in weights.values() for name in weight.parts.values()}
        rest = {name: t for name, t in source.tensors.items() if name not in packed}
        unused = tuple(sorted(name for name in rest if name.endswith(UNUSED)))
        if unused:
            message = "%s: %d scales and zero points of activations and of the KV cache, first %s"
            log.info(message, source.folder, len(unused), unused[0])
        plain = {name: t for name, t in rest.items() if name not in unused}
        _refuse_left_over(source, plain, quantization)
        _refuse_embedding(source, weights)
        for weight in weights.values():
            plain[weight.name] = _plain_header(source, weight)
        biases = _biases(weights, plain) if quantization.method == "gptq" else {}
        return cls(source, weights, plain, unused, biases)

    def check(self, expected: Mapping[str, Shape], optional: Mapping[str, Shape]) -> None:
        possible = {**self.extra_biases, **optional}
        Checkpoint(self.source.folder, self.tensors).check(expected, possible)

    def check_scales(self) -> None:
        """Read all scales, file by file; reading a weight checks its own.

        Raises:
            TensorError: a scale is NaN or infinite.
        """
        names: dict[Path, list[str]] = {}
        for weight in self.weights.values():
            for name in _scale_names(weight):
                names.setdefault(self.source.tensors[name].file, []).append(name)
        for file, scales in names.items():
            with safe_open(file, framework="pt") as opened:
                for name in scales:
                    _refuse_infinite(self.source, name, opened.get_tensor(name))

    def read(self, name: str, into: Tensor, part: Part = ()) -> None:
        weight = self.weights.get(name)
        if weight is None:
            self.source.read(name, into, part)
            return
        with _parts_of(self.source, weight) as parts:
            weight.dequantize({key: t.to(into.device) for key, t in parts.items()}, into, part)

    def get(self, name: str) -> Tensor:
        if name not in self.weights:
            return self.source.get(name)
        plain = torch.empty(self.tensors[name].shape, dtype=self.tensors[name].dtype)
        self.read(name, plain)
        return plain


def _biases(
    weights: Mapping[str, QuantizedWeight], plain: Mapping[str, StoredTensor]
) -> dict[str, Shape]:
    outputs = {name.removesuffix("weight") + "bias": one.shape[:1] for name, one in weights.items()}
    return {name: shape for name, shape in outputs.items() if name in plain}


def _plain_header(source: Checkpoint, weight: QuantizedWeight) -> StoredTensor:
    """Describe a weight by its scales' type: the one that it was quantized from."""
    stored = [source.tensors[name] for name in weight.parts.values()]
    wide = [one.dtype for one in stored if one.dtype.is_floating_point and one.dtype.itemsize > 1]
    quantized = None
    if weight.kept is not None:
        read = partial(_read_kept, source, weight)
        kept = weight.kept
        quantized = StoredQuantization(
            kept.precision,
            read,
            is_transposed=kept.is_transposed,
            is_shuffled=kept.is_shuffled,
        )
    dtype = wide[0] if wide else UNQUANTIZED_DTYPE
    return StoredTensor(stored[0].file, weight.shape, dtype, quantized)


def _read_kept(source: Checkpoint, weight: QuantizedWeight, part: Part) -> QuantizedTensor | None:
    with _parts_of(source, weight) as parts:
        return weight.read_kept(parts, part)


@contextmanager
def _parts_of(source: Checkpoint, weight: QuantizedWeight) -> Iterator[Parts]:
    """Map the tensors of a weight; what turns out wrong about their values names the weight."""
    parts = {part: source.get(stored) for part, stored in weight.parts.items()}
    for part, stored in weight.parts.items():
        if part in SCALES:
            _refuse_infinite(source, stored, parts[part])
    try:
        yield parts
    except ValueError as error:
        raise TensorError(source.folder, f"{weight.name}: {error}", MISFIT) from error


def _scale_names(weight: QuantizedWeight) -> Iterator[str]:
    return (name for part, name in weight.parts.items() if part in SCALES)


def _refuse_infinite(source: Checkpoint, name: str, scales: Tensor) -> None:
    """Raise with the first place and value where scales are not finite."""
    is_faulty = _is_infinite(scales)
    if not is_faulty.any():
        return
    place = is_faulty.nonzero()[0].tolist()
    value = exponent_scales(scales)[tuple(place)].item()
    fault = f"{name}{place or ''} is {value}, and a scale must be finite"
    raise TensorError(source.tensors[name].file, fault, DAMAGED)


def _is_infinite(scales: Tensor) -> Tensor:
    """Whether each scale is NaN or infinite; those of one byte stay bytes."""
    if scales.dtype == torch.float8_e4m3fn:
        return (scales.view(torch.uint8) & NAN_OF_FLOAT8) == NAN_OF_FLOAT8
    if scales.dtype in (torch.uint8, torch.float8_e8m0fnu):
        return scales.view(torch.uint8) == E8M0_NAN
    return ~scales.isfinite()


def _refuse_embedding(source: Checkpoint, weights: Mapping[str, QuantizedWeight]) -> None:
    for name, weight in weights.items():
        if name.removesuffix(".weight").rpartition(".")[2] in EMBEDDINGS:
            stored = source.tensors[next(iter(weight.parts.values()))]
            fault = f"{name} is quantized (stored as {stored.dtype}), and an embedding must not be"
            raise TensorError(source.folder, fault, "quantize the model again without it")


def _refuse_left_over(
    source: Checkpoint, plain: Mapping[str, StoredTensor], quantization: Quantization
) -> None:
    types = QUANTIZED_DTYPES.values()
    for name, stored in plain.items():
        if stored.dtype in types:
            fault = (
                f"{name} is of type {stored.dtype}, which {quantization.method} does not explain"
            )
            raise TensorError(source.folder, fault, MISFIT)


def open_checkpoint(folder: Path) -> TensorStore:
    """Open the tensors of a folder with a config.json, which declares how they are quantized."""
    return open_tensors(folder, read_quantization(ConfigFile.open(folder / "config.json")))


def open_tensors(folder: Path, quantization: Quantization | None) -> TensorStore:
    """Open the tensors of a folder; without a quantization they are plain, and may be pickles."""
    if quantization is None:
        return open_unquantized(folder)
    return DequantizingStore.of(Checkpoint.open_quantized(folder), quantization)
