"""The calls of linear maps whose weights are integers, on tensors without memory."""

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import NamedTuple

import torch

from specdecode_engine.model.config import DecoderConfig
from specdecode_engine.model.draft_config import DraftConfig
from specdecode_engine.startup.kernel_needs import KernelNeeds
from specdecode_engine.startup.op_inputs import empty
from specdecode_kernels import META, Backend, IntegerWeight, OpCall, Precision

ROWS = (3, 65)
"""Few and many: their tiles differ."""


class _Map(NamedTuple):
    """One linear map of a layer."""

    outputs: int
    inputs: int
    has_bias: bool


def integer_calls(
    needs: KernelNeeds, name: str, model: DraftConfig, ops: Backend
) -> Iterator[OpCall]:
    """Yield a call for every precision of integers, map of a layer, and number of rows."""
    maps = [*_layer_maps(model.decoder), _Map(model.vocab_size, model.decoder.hidden_size, False)]
    for precision, one, rows in product(needs.integers, maps, ROWS):
        call = partial(_linear, ops, precision, one, rows, needs.dtype)
        yield f"integer weights of the {name}", call


def _layer_maps(decoder: DecoderConfig) -> Iterator[_Map]:
    hidden, inner = decoder.hidden_size, decoder.intermediate_size
    queries = decoder.num_attention_heads * decoder.head_dim
    keys = decoder.num_key_value_heads * decoder.head_dim
    gates = queries if decoder.has_output_gate else 0
    yield _Map(queries + 2 * keys + gates, hidden, decoder.qkv_bias)
    yield _Map(hidden, queries, decoder.output_bias)
    yield _Map(2 * inner, hidden, decoder.mlp_bias)
    yield _Map(hidden, inner, decoder.mlp_bias)


def _linear(ops: Backend, precision: Precision, one: _Map, rows: int, dtype: torch.dtype) -> None:
    bias = empty(one.outputs, dtype=dtype) if one.has_bias else None
    weight = integers(precision, (one.outputs, one.inputs), dtype)
    ops.linear(empty(rows, one.inputs, dtype=dtype), weight, bias)


def integers(precision: Precision, shape: tuple[int, ...], dtype: torch.dtype) -> IntegerWeight:
    """Make a weight [..., outputs, inputs] without memory."""
    return IntegerWeight.empty(torch.Size(shape), precision, dtype, META)
