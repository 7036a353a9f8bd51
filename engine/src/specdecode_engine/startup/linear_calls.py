"""The calls of linear maps whose weights are quantized, on tensors without memory."""

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import NamedTuple

import torch

from specdecode_engine.model.config import DecoderConfig, LlamaConfig
from specdecode_engine.model.draft_config import DraftConfig
from specdecode_engine.startup.kernel_needs import KernelNeeds
from specdecode_engine.startup.op_inputs import empty
from specdecode_kernels import META, Backend, OpCall, Precision, QuantizedTensor

ROWS = (3, 65)
"""Few and many: their tiles differ."""


class _Map(NamedTuple):
    """One linear map of a layer."""

    outputs: int
    inputs: int
    has_bias: bool


def quantized_calls(
    needs: KernelNeeds, name: str, model: DraftConfig, ops: Backend
) -> Iterator[OpCall]:
    """Yield a call for every precision, map of a layer, and number of rows."""
    maps = model_maps(model)
    for precision, one, rows in product(needs.precisions, maps, ROWS):
        call = partial(_linear, ops, precision, one, rows, needs.dtype)
        yield f"quantized weights of the {name}", call


def model_maps(model: DraftConfig) -> list[_Map]:
    """Return the maps of a model that may be quantized; see `layer_maps`."""
    scored = model.head_rows if isinstance(model, LlamaConfig) else model.vocab_size
    return [*layer_maps(model.decoder), _Map(scored, model.decoder.hidden_size, False)]


def layer_maps(decoder: DecoderConfig) -> Iterator[_Map]:
    """Yield the maps of a layer that may be quantized, fused as they are read."""
    hidden, inner = decoder.hidden_size, decoder.intermediate_size
    yield _Map(2 * inner, hidden, decoder.mlp_bias)
    yield _Map(hidden, inner, decoder.mlp_bias)
    if decoder.latent is not None:
        maps = decoder.latent.maps(hidden, decoder.num_attention_heads)
        yield _Map(sum(maps.pop(name)[0] for name in decoder.latent.joined), hidden, False)
        del maps["kv_b_proj"]  # of heads, never quantized
        yield from (_Map(outputs, inputs, False) for outputs, inputs in maps.values())
        return
    queries = decoder.num_attention_heads * decoder.head_dim
    keys = decoder.num_key_value_heads * decoder.head_dim
    gates = queries if decoder.has_output_gate else 0
    yield _Map(queries + 2 * keys + gates, hidden, decoder.qkv_bias)
    yield _Map(hidden, queries, decoder.output_bias)


def _linear(ops: Backend, precision: Precision, one: _Map, rows: int, dtype: torch.dtype) -> None:
    bias = empty(one.outputs, dtype=dtype) if one.has_bias else None
    weight = quantized(precision, (one.outputs, one.inputs), dtype)
    ops.linear(empty(rows, one.inputs, dtype=dtype), weight, bias)


def quantized(precision: Precision, shape: tuple[int, ...], dtype: torch.dtype) -> QuantizedTensor:
    """Make a weight [..., outputs, inputs] without memory."""
    return QuantizedTensor.empty(torch.Size(shape), precision, dtype, META)
