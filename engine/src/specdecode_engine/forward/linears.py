"""How linear maps keep their weights: as they are, or packed for a CPU; chosen once, with a reason.

Packing takes the place of the plain weight, but for an embedding that is also the head: that is
looked up by token and stays beside its packed copy.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from specdecode_engine.forward.layers import Linear
from specdecode_kernels import packed


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

    Without packing every map is plain. A shape whose sums depend on the number of rows stays plain
    too.
    """

    obstacle: str | None = "nobody asked for packing"
    _packed: int = 0
    _refused: set[tuple[int, ...]] = field(default_factory=set)

    @classmethod
    def choose(cls, device: torch.device, dtype: torch.dtype) -> "Linears":
        """Pack where this device can for this type."""
        return cls(packed.obstacle(device, dtype))

    def make(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """Make one map; the caller gives `weight` away."""
        if self.obstacle is not None or tuple(weight.shape) in self._refused:
            return Linear(weight, bias)
        blocks = packed.pack(weight)
        if blocks is None:
            self._refused.add(tuple(weight.shape))
            return Linear(weight, bias)
        self._packed += 1
        return Linear(blocks, bias)

    def report(self) -> LinearsReport:
        """Say what was chosen and why."""
        if self.obstacle is not None:
            return LinearsReport("plain", f"plain, as {self.obstacle}")
        reason = f"oneDNN's layout for {self._packed} maps, rows equal to the bit at every count"
        if self._refused:
            shapes = ", ".join(str(list(shape)) for shape in sorted(self._refused))
            reason += f"; plain for {shapes}, where they are not"
        return LinearsReport("packed", reason)
