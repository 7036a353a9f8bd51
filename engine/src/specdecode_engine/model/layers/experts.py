"""The experts of one layer of a mixture, as a plain record that holds weights and can be called."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specdecode_engine.model.layers.linears import Linears
from specdecode_kernels import (
    Backend,
    ExpertRouting,
    ExpertWeights,
    GatedActivation,
    QuantizedTensor,
)


@dataclass(slots=True, eq=False)
class Experts:
    """Gated feed-forward blocks of which every row uses some.

    `record` receives the ids [rows, top_k] i32 of every call; it is set once, after loading, where
    the experts of tokens are returned.
    """

    ops: Backend
    weights: ExpertWeights
    activation: GatedActivation
    record: Callable[[Tensor], None] | None = None

    @classmethod
    def make(
        cls,
        linears: Linears,
        gate_up: Tensor | QuantizedTensor,
        down: Tensor | QuantizedTensor,
        activation: GatedActivation,
        *,
        gate_up_bias: Tensor | None = None,
        down_bias: Tensor | None = None,
    ) -> "Experts":
        """Make them of [experts, 2 * inner, hidden] and [experts, hidden, inner]; the caller gives
        the weights away. Rows of the gate come first, then those of up.
        """
        biases = [None if bias is None else bias.contiguous() for bias in (gate_up_bias, down_bias)]
        weights = ExpertWeights(linears.pack(gate_up), linears.pack(down), *biases)
        return cls(linears.ops, weights, activation)

    def __call__(self, x: Tensor, routing: ExpertRouting) -> Tensor:
        """Map [rows, hidden] to [rows, hidden]."""
        if self.record is not None:
            self.record(routing.ids)
        return self.ops.experts(x, routing, self.weights, self.activation)

    def on_scaled_rows(self, x: Tensor, routing: ExpertRouting) -> Tensor:
        """Map [rows, hidden] as experts that read rows times their factors, and add what they
        return, in the order of a row's ids.
        """
        if self.record is not None:
            self.record(routing.ids)
        scaled = x[:, None] * routing.weights[..., None].to(x.dtype)
        each = ExpertRouting(routing.ids.view(-1, 1), torch.ones_like(routing.weights).view(-1, 1))
        mapped = self.ops.experts(scaled.flatten(0, 1), each, self.weights, self.activation)
        total, *others = mapped.view(scaled.shape).unbind(1)
        for other in others:
            total = total + other
        return total


def gates_first(interleaved: Tensor) -> Tensor:
    """Put gates before ups in [experts, 2 * inner, ...], where they alternate (gpt-oss)."""
    experts, both = interleaved.shape[:2]
    pairs = interleaved.reshape(experts, both // 2, 2, *interleaved.shape[2:])
    return pairs.transpose(1, 2).reshape(interleaved.shape)
