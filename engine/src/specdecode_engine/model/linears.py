"""How linear maps keep their weights: as they are, or packed for a CPU, as the backend allows.

Packing takes the place of the plain weight, but for an embedding that is also the head: that is
looked up by token and stays next to its packed copy.
"""

from dataclasses import dataclass

from torch import Tensor

from specdecode_engine.model.layers import Linear
from specdecode_kernels import TORCH, Backend, Choice


@dataclass(frozen=True, slots=True)
class LinearsReport:
    """What was chosen, for people to read."""

    name: str  # plain or packed
    reason: str

    def facts(self) -> dict[str, object]:
        """Return the fields of /server_info."""
        return {"linears": self.name, "linears_reason": self.reason}


@dataclass(slots=True)
class Linears:
    """Makes the linear maps of one engine; owned by whoever loads it, one after the other.

    `ops` computes every layer that is loaded with them. Without packing every map is plain.
    """

    ops: Backend = TORCH
    plain_weights: str | None = "nobody asked for packing"  # why they are not packed
    _packed: int = 0

    @classmethod
    def of(cls, choice: Choice) -> "Linears":
        """Pack where the chosen backend can."""
        return cls(choice.backend, choice.plain_weights)

    def make(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """Make one map; the caller gives `weight` away."""
        if self.plain_weights is not None:
            return Linear(self.ops, weight, bias)
        assert self.ops.pack_weight is not None
        self._packed += 1
        return Linear(self.ops, self.ops.pack_weight(weight), bias)

    def report(self) -> LinearsReport:
        """Report what was chosen and why."""
        if self.plain_weights is not None:
            return LinearsReport("plain", f"plain, as {self.plain_weights}")
        return LinearsReport("packed", f"{self._packed} maps in the order in which C reads them")
