"""Makes the linear maps of an engine: in which form their weights are kept."""

import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Self

import torch
from torch import Tensor

from specdecode_engine.model.checkpoint.checkpoint import Shape, StoredTensor, list_names
from specdecode_engine.model.checkpoint.config_file import CheckpointError
from specdecode_engine.model.layers.layers import Linear
from specdecode_engine.ranks import LEADER, Ranks
from specdecode_kernels import (
    INT4,
    INT8,
    TORCH,
    AnyWeight,
    Backend,
    Choice,
    Precision,
    QuantizedTensor,
    quantize,
)

log = logging.getLogger(__name__)

LEAST_QUANTIZED = 64
"""Outputs and inputs of the smallest map that is quantized: smaller ones take no memory or time."""

PRECISIONS = {"int8": INT8, "int4": INT4}
"""To what weights are rounded, by the values of `model.quantization`: with others they are not."""


class MapKind(Enum):
    """What a linear map computes, which decides how precise its weights stay."""

    LAYER = "layer"  # of attention or an MLP, or a projection of a draft
    EXPERTS = "experts"  # of all experts of a layer, whose inputs have one order
    HEAD = "head"  # scores of the vocabulary: at least 8 bits
    ROUTER = "router"  # which experts compute a row, and how much one adds: never quantized
    HEADS = "heads"  # of latents, for each head: never quantized


@dataclass(frozen=True, slots=True)
class Placement:
    """Data type and device of loaded tensors; quantized weights and masks keep their type."""

    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DividedLinear(Linear):
    """A linear map of which every rank computes an equal share of the outputs; weight and bias are
    those of this rank's.
    """

    ranks: Ranks

    @classmethod
    def of(cls, share: Linear, ranks: Ranks) -> Self:
        """Join the share of this rank with those of the others."""
        return cls(share.ops, share.weight, share.bias, ranks=ranks)

    def __call__(self, x: Tensor) -> Tensor:
        return self.ranks.join(self.ops.linear(x, self.weight, self.bias))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SummedLinear(Linear):
    """A linear map of which every rank has an equal share of the inputs; the weight is that of this
    rank's, and one rank adds the bias.
    """

    ranks: Ranks

    @classmethod
    def of(cls, share: Linear, ranks: Ranks) -> Self:
        """Add what the share of this rank computes to what the others do."""
        bias = share.bias if ranks.rank == LEADER else None
        return cls(share.ops, share.weight, bias, ranks=ranks)

    def __call__(self, x: Tensor) -> Tensor:
        return self.ranks.add(self.ops.linear(x, self.weight, self.bias))


@dataclass(slots=True)
class Linears:
    """Makes the linear maps of one engine; owned by its loader, one checkpoint after the other.

    `ops` computes every layer loaded with them. Weights that a quantized checkpoint stores in a
    form of the kernels are kept, others are rounded to integers where that is configured. They stay
    as they are where there is a reason, else they are packed for a CPU. The memory of the plain
    weight is released while it is packed, except for an embedding that is also the head: it is
    looked up by token and stays next to its copy.
    """

    ops: Backend = TORCH
    plain_weights: str | None = "packing was not requested"  # why they are not packed
    precision: Precision | None = None  # to which weights are rounded
    keeps_quantized: bool = True  # weights as they are stored
    _kinds: Counter[str] = field(default_factory=Counter)
    _has_noted: bool = False

    @classmethod
    def of(cls, choice: Choice, quantization: str = "auto") -> "Linears":
        """Pack where the chosen backend can.

        Args:
            quantization: `model.quantization`.
        """
        precision, keeps_quantized = PRECISIONS.get(quantization), quantization != "none"
        return cls(choice.backend, choice.plain_weights, precision, keeps_quantized)

    def make(
        self,
        weight: Tensor | QuantizedTensor,
        bias: Tensor | None = None,
        kind: MapKind = MapKind.LAYER,
        *,
        is_kept: bool = False,
    ) -> Linear:
        """Make one map; the caller gives `weight` away, unless it is kept."""
        return Linear(self.ops, self.pack(weight, kind, is_kept=is_kept), bias)

    def pack(
        self,
        weight: Tensor | QuantizedTensor,
        kind: MapKind = MapKind.LAYER,
        *,
        is_kept: bool = False,
    ) -> AnyWeight:
        """Bring a weight, or those of all experts of a layer, into the form that is kept.

        Raises:
            CheckpointError: a weight that is rounded to integers contains NaN or infinity.
        """
        form = self._rounded(weight, kind) if isinstance(weight, Tensor) else weight
        self._kinds[_name(form)] += 1
        if self.plain_weights is not None:
            return form
        assert self.ops.pack_weight is not None
        return self.ops.pack_weight(form, release=not is_kept)

    def _rounded(self, weight: Tensor, kind: MapKind) -> Tensor | QuantizedTensor:
        precision = precision_of(self.precision, kind, tuple(weight.shape))
        return weight if precision is None else _quantized(weight, precision)

    def keeps(self, stored: StoredTensor, kind: MapKind | None) -> bool:
        """Whether a weight is kept as it is stored: unless fewer bits are configured.

        `kind` is None for a tensor that is the weight of no linear map.
        """
        if stored.quantized is None or not self.keeps_quantized:
            return False
        if kind in (None, MapKind.ROUTER, MapKind.HEADS):
            return False
        if kind is MapKind.EXPERTS and stored.quantized.is_shuffled:  # each has its own order
            return False
        rounded = precision_of(self.precision, kind, stored.shape)
        return rounded is None or stored.quantized.precision.bits <= rounded.bits

    def note_dequantized(self, names: Sequence[str]) -> None:
        """Log the first maps whose headers fit a form of the kernels and whose numbers do not."""
        if self._has_noted:
            return
        self._has_noted = True
        log.warning(
            "%s cannot be kept as stored: forms or orders of inputs (g_idx) differ, groups have "
            "different sizes, or numbers are NaN; these and others like them are dequantized",
            list_names(names),
        )

    def facts(self) -> dict[str, object]:
        """Return what was chosen and why: fields of /server_info."""
        kinds: dict[str, object] = {"linear_weights": dict(sorted(self._kinds.items()))}
        if self.plain_weights is not None:
            return kinds | {"linears": "plain", "linears_reason": f"plain, as {self.plain_weights}"}
        reason = f"{self._kinds.total()} maps in the order in which C reads them"
        return kinds | {"linears": "packed", "linears_reason": reason}


def precision_of(precision: Precision | None, kind: MapKind, shape: Shape) -> Precision | None:
    """Return to what a weight [..., outputs, inputs] is rounded; None: it is not."""
    if precision is None or kind in (MapKind.ROUTER, MapKind.HEADS):
        return None
    if min(shape[-2:]) < LEAST_QUANTIZED:
        return None
    return INT8 if kind is MapKind.HEAD else precision


def joined(parts: Sequence[QuantizedTensor], placement: Placement) -> QuantizedTensor | None:
    """Put matrices of the same inputs one below the other.

    Returns:
        None if formats, groups or the order of inputs differ.
    """
    first = parts[0]
    if len({replace(one.precision, has_zeros=False) for one in parts}) > 1:
        return None
    if not all(_have_one_order(first, one) for one in parts):
        return None
    zeros = None
    if any(one.zeros is not None for one in parts):
        zeros = [
            torch.zeros_like(one.scales, dtype=torch.int8) if one.zeros is None else one.zeros
            for one in parts
        ]
    factors = [one.factors for one in parts if one.factors is not None]
    values = torch.cat([one.values for one in parts])
    whole = QuantizedTensor(
        values,
        torch.cat([one.scales for one in parts]),
        torch.Size((len(values), *first.shape[1:])),
        placement.dtype,
        first.group,
        torch.cat(zeros) if zeros else None,
        torch.cat(factors) if factors else None,
        first.order,
    )
    return whole.on(placement.device)


def _have_one_order(first: QuantizedTensor, other: QuantizedTensor) -> bool:
    if first.order is None or other.order is None:
        return first.order is other.order
    return torch.equal(first.order, other.order)


def arranged(
    weight: Tensor | QuantizedTensor, arrange: Callable[[Tensor], Tensor]
) -> Tensor | QuantizedTensor:
    """Arrange the outputs of a weight [outputs, inputs] with all that belongs to each."""
    if isinstance(weight, Tensor):
        return arrange(weight)

    def as_bytes(numbers: Tensor) -> Tensor:
        """Floats of one byte have no indexing."""
        if numbers.element_size() > 1:
            return arrange(numbers)
        return arrange(numbers.view(torch.uint8)).view(numbers.dtype)

    scales = as_bytes(weight.scales)
    zeros = None if weight.zeros is None else as_bytes(weight.zeros)
    factors = None if weight.factors is None else arrange(weight.factors[..., None])[..., 0]
    shape = torch.Size((*scales.shape[:-1], weight.shape[-1]))
    values = as_bytes(weight.values)
    return replace(weight, values=values, scales=scales, shape=shape, zeros=zeros, factors=factors)


def rounded_alike(rows: Tensor, weight: AnyWeight) -> Tensor:
    """Return rows of a plain weight as `weight` would have them; quantized in float32.

    Raises:
        CheckpointError: as `Linears.pack`.
    """
    precision = None if isinstance(weight, Tensor) else weight.precision
    rows = rows.to(weight.dtype)
    return rows if precision is None else _quantized(rows, precision).plain()


def _quantized(weight: Tensor, precision: Precision) -> QuantizedTensor:
    try:
        return quantize(weight, precision)
    except ValueError as error:
        raise CheckpointError(f"{error}; set model.quantization to auto") from error


def kept_bytes(name: str, stored: StoredTensor, dtype: torch.dtype, linears: Linears) -> int:
    """Return the memory of one tensor of a checkpoint, without what fills up its last blocks."""
    shape, kind, scale_bytes = stored.shape, kind_of(name, stored.shape), 2
    count, inputs = math.prod(shape), shape[-1]
    precision = kind and precision_of(linears.precision, kind, shape)
    if stored.quantized is not None and linears.keeps(stored, kind):
        precision = stored.quantized.precision
        scale_bytes = 2 if stored.dtype == torch.bfloat16 else 4
        inputs = shape[-2] if stored.quantized.is_transposed else inputs
    if precision is None:
        return count * dtype.itemsize
    groups = -(-inputs // precision.group) if precision.group else 1
    scale_bytes = min(scale_bytes if precision.group else 4, precision.scale_bytes)
    each = groups * (scale_bytes + precision.has_zeros) + 4 * precision.has_factors
    return count * precision.bits // 8 + count // inputs * each


_ROUTERS = (".gate.weight", ".router.weight", "_gate.weight", ".router.layer.weight")
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")


def kind_of(name: str, shape: tuple[int, ...]) -> MapKind | None:
    """Infer from a tensor's name what it is the weight of; None: of no linear map."""
    if len(shape) < 2 or name.endswith((*_EMBEDDINGS, ".bias", "_bias")):
        return None
    if name.endswith(_ROUTERS):
        return MapKind.ROUTER
    if name.endswith(".kv_b_proj.weight"):
        return MapKind.HEADS
    if ".experts." in name:
        return MapKind.EXPERTS
    return MapKind.HEAD if name.endswith("head.weight") else MapKind.LAYER


def _name(weight: Tensor | QuantizedTensor) -> str:
    if isinstance(weight, Tensor):
        return str(weight.dtype).removeprefix("torch.")
    return weight.format
