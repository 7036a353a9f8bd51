"""From the captured features of the target to an EAGLE-3 head's hidden state.

Published heads norm nothing, the features of all layers at once, or those of each layer by
itself, before one linear map; or they read the target's last hidden state as it is.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from specdecode_engine.forward.checkpoint import Shape
from specdecode_engine.forward.eagle3_config import Eagle3Config
from specdecode_engine.forward.layers import Linear, Norm
from specdecode_engine.forward.weights import Weights, linear_shapes


@dataclass(frozen=True, slots=True, eq=False)
class Fusion:
    """Norms and a linear map over features [rows, width]; applied to nothing else."""

    norms: tuple[Norm, ...]  # each of an equal part of the features; none leaves them as they are
    linear: Linear

    def __call__(self, features: Tensor) -> Tensor:
        """Map to [rows, hidden]."""
        if self.norms:
            parts = features.chunk(len(self.norms), dim=-1)
            normed = [norm(part) for norm, part in zip(self.norms, parts, strict=True)]
            features = torch.cat(normed, dim=-1)
        return self.linear(features)


def fusion_shapes(config: Eagle3Config, target_hidden: int) -> tuple[dict[str, Shape], ...]:
    """Name the required and the optional tensors."""
    if config.capture.final:
        return {}, {}
    hidden, width = config.decoder.hidden_size, config.capture.width(target_hidden)
    norms = _norm_names(config)
    shapes: dict[str, Shape] = {f"{name}.weight": (width // len(norms),) for name in norms}
    shapes |= linear_shapes("fc", hidden, width, bias=False)
    return shapes, {"fc.bias": (hidden,)}


def load_fusion(weights: Weights, config: Eagle3Config) -> Fusion | None:
    """Hand over the fusion; None where the features are the hidden state."""
    if config.capture.final:
        return None
    norms = tuple(weights.norm(name, config.decoder) for name in _norm_names(config))
    return Fusion(norms, weights.linear("fc"))


def _norm_names(config: Eagle3Config) -> tuple[str, ...]:
    if config.norm_before_fc:
        return ("input_norm",)
    count = len(config.capture.layers) if config.fc_norm else 0
    return tuple(f"fc_norm.{number}" for number in range(count))
