"""How linear maps keep their weights: as they are, or packed for a CPU; chosen once, with a reason.

Packing takes the place of the plain weight, but for an embedding that is also the head: that is
looked up by token and stays beside its packed copy.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from specdecode_engine.forward.layers import Linear
from specdecode_kernels.native import linear as packing


@dataclass(frozen=True, slots=True)
class LinearsReport:
    """What was chosen, for people to read."""

    name: str  # plain or packed
    reason: str

    def facts(self) -> dict[str, object]:
        """Say it under the names of /server_info."""
        return {"linears": self.name, "linears_reason": self.reason}


@dataclass(slots=True)
class Linears:
    """Makes the linear maps of one engine; owned by whoever loads it, one after the other.

    Without packing every map is plain.
    """

    obstacle: str | None = "nobody asked for packing"
    _packed: int = 0

    @classmethod
    def choose(cls, device: torch.device, dtype: torch.dtype) -> "Linears":
        """Pack where this device can for this type."""
        return cls(packing.obstacle(device, dtype))

    def make(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """Make one map; the caller gives `weight` away."""
        if self.obstacle is not None:
            return Linear(weight, bias)
        self._packed += 1
        return Linear(packing.pack(weight), bias)

    def report(self) -> LinearsReport:
        """Say what was chosen and why."""
        if self.obstacle is not None:
            return LinearsReport("plain", f"plain, as {self.obstacle}")
        return LinearsReport("packed", f"{self._packed} maps in the order in which C reads them")
