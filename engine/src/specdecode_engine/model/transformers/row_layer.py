"""Decoder layers whose parts are all ours, in as few calls as can be."""

import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from specdecode_engine.model.transformers.attention import CACHES
from specdecode_engine.model.transformers.modules import (
    RotaryRows,
    RowGatedMlp,
    RowModule,
    RowRmsNorm,
)
from specdecode_engine.model.transformers.recognition import (
    is_close,
    random_linear,
    random_tensor,
    with_children,
)
from specdecode_engine.model.transformers.row_attention import RowAttention
from specdecode_engine.model.transformers.row_latent_attention import RowLatentAttention
from specdecode_kernels import Backend

ARGUMENTS = tuple(
    ("self", "hidden_states", "attention_mask", "position_ids", cache, "use_cache",
     "position_embeddings")
    for cache in CACHES
)  # fmt: skip
"""First arguments of a layer's forward: a model may give them by place, or by either name."""

_WIDTH, _ROWS = 8, 3


class LayerParts(NamedTuple):
    """The children of a layer: attention and MLP, and the norm before each."""

    input_norm: RowRmsNorm
    attention: RowAttention | RowLatentAttention
    mlp_norm: RowRmsNorm
    mlp: RowGatedMlp


class RowDecoderLayer(RowModule):
    """Attention and MLP, each after a norm and added to the residual stream."""

    def __init__(self, ops: Backend, parts: LayerParts, layer: nn.Module) -> None:
        super().__init__()
        assert parts.mlp_norm.weight is not None
        self.input_norm, self.attention, self.mlp_norm, self.mlp = parts
        # Kept outside of torch's dictionary of children, in which a look-up takes longer.
        self.add_norm = ops.add_rms_norm
        self.norm_weight, self.eps = parts.mlp_norm.weight, parts.mlp_norm.eps
        self.compute_norm = parts.input_norm.forward
        self.compute_attention = parts.attention.forward
        self.compute_mlp = parts.mlp.forward
        for name, value in vars(layer).items():  # models read them, as attention_type
            if isinstance(value, str | int) and name not in vars(self):
                setattr(self, name, value)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: object = None,
        position_ids: object = None,
        cache: object = None,
        use_cache: object = None,
        position_embeddings: RotaryRows | None = None,
        **arguments: Any,
    ) -> Tensor:
        """Map the residual stream [1, rows, hidden] to itself."""
        read = self.compute_norm(hidden_states)
        attended, _ = self.compute_attention(read, position_embeddings, attention_mask, **arguments)
        summed, normed = self.add_norm(hidden_states, attended, self.norm_weight, self.eps)
        return summed + self.compute_mlp(normed)


class _ProbeAttention(nn.Module):
    """Returns what an attention module returns, if it is given the angles."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = random_linear(_WIDTH, _WIDTH, seed=1)
        self.angles = object()

    def forward(
        self, hidden_states: Tensor, position_embeddings: object, **_: object
    ) -> tuple[Tensor, None]:
        factor = 1.0 if position_embeddings is self.angles else torch.nan
        return self.linear(hidden_states) * factor, None


def recognise_layer(layer: nn.Module) -> LayerParts | None:
    """Return the parts of a layer that `RowDecoderLayer` computes, None for any other."""
    names = part_names(layer)
    if (
        names is None
        or tuple(inspect.signature(type(layer).forward).parameters)[:7] not in ARGUMENTS
    ):
        return None
    attention = _ProbeAttention()
    first, second, mlp = (random_linear(_WIDTH, _WIDTH, seed) for seed in (2, 3, 4))
    probe = with_children(layer, dict(zip(names, (first, attention, second, mlp), strict=True)))
    rows = random_tensor(1, _ROWS, _WIDTH)
    with torch.no_grad():
        summed = rows + attention.linear(first(rows))
        wanted = summed + mlp(second(summed))
        try:
            computed = probe(rows, position_embeddings=attention.angles)
        except (TypeError, RuntimeError, ValueError, AttributeError, KeyError, IndexError):
            return None
    if not isinstance(computed, Tensor) or not is_close(computed, wanted):
        return None
    return LayerParts(*(layer._modules[name] for name in names))  # type: ignore[arg-type]


def part_names(layer: nn.Module) -> tuple[str, ...] | None:
    """Return the names of the four children in the order in which they are computed.

    None: they are not two norms, an attention and a gated MLP of ours.
    """
    norms = [name for name, child in layer.named_children() if type(child) is RowRmsNorm]
    kinds = RowAttention | RowLatentAttention, RowGatedMlp
    others = [
        [name for name, child in layer.named_children() if isinstance(child, kind)]
        for kind in kinds
    ]
    if [*map(len, others), len(norms), len(layer._modules)] != [1, 1, 2, 4]:
        return None
    if any(getattr(layer, name).weight is None for name in norms):
        return None
    return norms[0], others[0][0], norms[1], others[1][0]
