"""Makes the linear maps of an engine: in which form their weights are kept."""

import math
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

import torch
from torch import Tensor

from specdecode_engine.model.checkpoint import Shape
from specdecode_engine.model.config_file import CheckpointError
from specdecode_engine.model.layers import Linear
from specdecode_kernels import (
    INT4,
    INT8,
    TORCH,
    AnyWeight,
    Backend,
    Choice,
    IntegerWeight,
    Precision,
    quantize,
)

LEAST_QUANTIZED = 64
"""Outputs and inputs of the smallest map that is quantized: smaller ones take no memory or time."""

PRECISIONS = {"int8": INT8, "int4": INT4}
"""By the values of `model.quantization`; with auto, weights keep the type of the model."""


class MapKind(Enum):
    """What a linear map computes, which decides how precise its weights stay."""

    LAYER = "layer"  # of attention, an MLP or experts, or a projection of a draft
    HEAD = "head"  # scores of the vocabulary: at least 8 bits
    ROUTER = "router"  # which experts compute a row, and how much one adds: never quantized


@dataclass(frozen=True, slots=True)
class Placement:
    """Data type and device of loaded tensors; integers and masks keep their type."""

    dtype: torch.dtype
    device: torch.device


@dataclass(slots=True)
class Linears:
    """Makes the linear maps of one engine; owned by its loader, one checkpoint after the other.

    `ops` computes every layer loaded with them. Weights are rounded to integers where that is
    configured. They stay as they are where there is a reason, else they are packed for a CPU. The
    memory of the plain weight is released while it is packed, except for an embedding that is also
    the head: it is looked up by token and stays next to its copy.
    """

    ops: Backend = TORCH
    plain_weights: str | None = "packing was not requested"  # why they are not packed
    precision: Precision | None = None  # to which weights are rounded
    _kinds: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, choice: Choice, quantization: str = "auto") -> "Linears":
        """Pack where the chosen backend can.

        Args:
            quantization: `model.quantization`.
        """
        return cls(choice.backend, choice.plain_weights, PRECISIONS.get(quantization))

    def make(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        kind: MapKind = MapKind.LAYER,
        *,
        is_kept: bool = False,
    ) -> Linear:
        """Make one map; the caller gives `weight` away, unless it is kept."""
        return Linear(self.ops, self.pack(weight, kind, is_kept=is_kept), bias)

    def pack(
        self, weight: Tensor, kind: MapKind = MapKind.LAYER, *, is_kept: bool = False
    ) -> AnyWeight:
        """Bring a weight, or those of all experts of a layer, into the form that is kept.

        Raises:
            CheckpointError: a weight that is rounded to integers contains NaN or infinity.
        """
        form = self._rounded(weight, kind)
        self._kinds[_name(form)] += 1
        if self.plain_weights is not None:
            return form
        assert self.ops.pack_weight is not None
        return self.ops.pack_weight(form, release=not is_kept)

    def _rounded(self, weight: Tensor, kind: MapKind) -> Tensor | IntegerWeight:
        precision = precision_of(self.precision, kind, tuple(weight.shape))
        return weight if precision is None else _quantized(weight, precision)

    def facts(self) -> dict[str, object]:
        """Return what was chosen and why: fields of /server_info."""
        kinds: dict[str, object] = {"linear_weights": dict(sorted(self._kinds.items()))}
        if self.plain_weights is not None:
            return kinds | {"linears": "plain", "linears_reason": f"plain, as {self.plain_weights}"}
        reason = f"{self._kinds.total()} maps in the order in which C reads them"
        return kinds | {"linears": "packed", "linears_reason": reason}


def precision_of(precision: Precision | None, kind: MapKind, shape: Shape) -> Precision | None:
    """Return to what a weight [..., outputs, inputs] is rounded; None: it is not."""
    if precision is None or kind is MapKind.ROUTER or min(shape[-2:]) < LEAST_QUANTIZED:
        return None
    return INT8 if kind is MapKind.HEAD else precision


def rounded_alike(rows: Tensor, weight: AnyWeight) -> Tensor:
    """Return rows of a plain weight as `weight` would have them; of integers in float32.

    Raises:
        CheckpointError: as `Linears.pack`.
    """
    precision = None if isinstance(weight, Tensor) else weight.precision
    rows = rows.to(weight.dtype)
    return rows if precision is None else _quantized(rows, precision).plain()


def _quantized(weight: Tensor, precision: Precision) -> IntegerWeight:
    try:
        return quantize(weight, precision)
    except ValueError as error:
        raise CheckpointError(f"{error}; set model.quantization to auto") from error


def kept_bytes(name: str, shape: Shape, dtype: torch.dtype, quantization: str) -> int:
    """Return the memory of one tensor of a checkpoint, without what fills up its last blocks."""
    count, kind = math.prod(shape), _kind_of(name, shape)
    precision = kind and precision_of(PRECISIONS.get(quantization), kind, shape)
    if precision is None:
        return count * dtype.itemsize
    groups = -(-shape[-1] // precision.group) if precision.group else 1
    scale_bytes = 4 if precision.bits == 8 else 2
    return count * precision.bits // 8 + count // shape[-1] * groups * scale_bytes


_ROUTERS = (".gate.weight", ".router.weight", "_gate.weight", ".router.layer.weight")
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")


def _kind_of(name: str, shape: tuple[int, ...]) -> MapKind | None:
    """Infer from a tensor's name what it is the weight of; None: of no linear map."""
    if len(shape) < 2 or name.endswith((*_EMBEDDINGS, ".bias", "_bias")):
        return None
    if name.endswith(_ROUTERS):
        return MapKind.ROUTER
    return MapKind.HEAD if name.endswith("head.weight") else MapKind.LAYER


def _name(weight: Tensor | IntegerWeight) -> str:
    if isinstance(weight, Tensor):
        return str(weight.dtype).removeprefix("torch.")
    return f"int{weight.bits}"
