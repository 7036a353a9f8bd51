"""From the aux hidden states of the target to an EAGLE-3 head's hidden state.

Before one linear map, published heads norm nothing, the hidden states of all layers at once, or
those of each layer separately; or they read the target's last hidden state unchanged.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from specdecode_engine.model.checkpoint import Shape
from specdecode_engine.model.eagle3_config import Eagle3Config
from specdecode_engine.model.layers import Linear, Norm
from specdecode_engine.model.weights import Weights, linear_shapes


@dataclass(frozen=True, slots=True, eq=False)
class Fusion:
    """Norms and a linear map over aux hidden states [rows, width]; applied to nothing else."""

    norms: tuple[Norm, ...]  # each of an equal part; without norms nothing is normalized
    linear: Linear

    def __call__(self, aux_hidden_states: Tensor) -> Tensor:
        """Map to [rows, hidden]."""
        if self.norms:
            parts = aux_hidden_states.chunk(len(self.norms), dim=-1)
            normed = [norm(part) for norm, part in zip(self.norms, parts, strict=True)]
            aux_hidden_states = torch.cat(normed, dim=-1)
        return self.linear(aux_hidden_states)


def fusion_shapes(config: Eagle3Config, target_hidden: int) -> tuple[dict[str, Shape], ...]:
    """Name the required and the optional tensors."""
    if config.aux_spec.final:
        return {}, {}
    hidden, width = config.decoder.hidden_size, config.aux_spec.width(target_hidden)
    norms = _norm_names(config)
    shapes: dict[str, Shape] = {f"{name}.weight": (width // len(norms),) for name in norms}
    shapes |= linear_shapes("fc", hidden, width, bias=False)
    return shapes, {"fc.bias": (hidden,)}


def load_fusion(weights: Weights, config: Eagle3Config) -> Fusion | None:
    """Hand over the fusion; None where the aux hidden states are the hidden state."""
    if config.aux_spec.final:
        return None
    norms = tuple(weights.norm(name, config.decoder) for name in _norm_names(config))
    return Fusion(norms, weights.linear("fc"))


def _norm_names(config: Eagle3Config) -> tuple[str, ...]:
    if config.norm_before_fc:
        return ("input_norm",)
    count = len(config.aux_spec.layers) if config.fc_norm else 0
    return tuple(f"fc_norm.{number}" for number in range(count))
