"""Digests of what every kernel in C computes, to compare processors; `python -m` prints them."""

import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from specdecode_kernels import Backend, DeltaShape, ExpertWeights, GatedActivation
from specdecode_kernels.testing import Shape, backend_of, draw_case
from specdecode_kernels.testing.gated_delta import (
    DeltaForm,
    ancestry_of,
    delta_rows,
    run_gated_delta,
)
from tests.kernels.attention_params import draw_params
from tests.kernels.low_rank import draw_factors, maps_of, rows_of
from tests.kernels.mixtures import KINDS, WIDTH, draw_routing, draw_weights, normal
from tests.kernels.quantized import FLOAT4, FORMS, draw_quantized

CPU = torch.device("cpu")
TYPES = (torch.float32, torch.bfloat16)
ROWS = (1, 3, 8, 40)
SHAPES = {
    "decode": Shape((1,) * 3, page_size=16, kv_heads=2, shared=1, dim=16, longest=40),
    "verify": Shape((4,) * 2, page_size=4, kv_heads=2, shared=4, dim=40, longest=70),
    "prompt": Shape((37,), page_size=1, kv_heads=1, shared=3, dim=10, longest=60),
    "tree": Shape((2,) * 3, page_size=4, kv_heads=2, shared=2, dim=64, longest=20, tree_rows=5),
}


def digests() -> dict[str, str]:
    """Digest the results of all kernels by name."""
    return {
        f"{name} {dtype}": hashlib.sha256(
            result.float().contiguous().numpy().tobytes()
        ).hexdigest()[:16]
        for dtype in TYPES
        for name, result in _results(backend_of("cpu", CPU, dtype), dtype)
    }


def _results(ops: Backend, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    yield from _linear(ops, dtype)
    yield from _elementwise(ops, dtype)
    yield from _low_rank(ops, dtype)
    yield from _experts(ops, dtype)
    yield from _gated_delta(ops, dtype)
    for name, shape in SHAPES.items():
        for seed in range(4):
            drawn = draw_params(replace(shape, dtype=dtype), random.Random(seed))
            yield f"attend {name} {seed}", draw_case(drawn, seed).attend(ops)


def _linear(ops: Backend, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    assert ops.pack_weight is not None
    for outputs, inputs in ((100, 75), (70, 300)):
        packed = ops.pack_weight(normal(outputs, inputs).to(dtype))
        for rows in ROWS:
            x, bias = normal(rows, inputs).to(dtype), normal(outputs).to(dtype)
            yield f"linear {outputs} {inputs} {rows}", ops.linear(x, packed, bias)
    tiny = normal(100, 75) * 2.0**-62
    tiny[:, ::5] *= 2.0**124
    packed = ops.pack_weight(tiny.to(dtype))
    for rows in ROWS:
        x = normal(rows, 75) * 2.0**-66
        x[:, ::5] *= 2.0**-62
        yield f"linear subnormal {rows}", ops.linear(x.to(dtype), packed, None)
    for form in (*FORMS, *FLOAT4):
        weight = draw_quantized(form, normal(100, 333).to(dtype))
        packed = ops.pack_weight(weight)
        for rows in (*ROWS, 100):
            x = normal(rows, 333).to(dtype)
            yield f"linear {form} {rows}", ops.linear(x, packed, None)


def _low_rank(ops: Backend, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    maps = maps_of(ops, [draw_factors(100, 75, rank, rank) for rank in (3, 16, 40)])
    for rows in ROWS:
        out, x = normal(rows, 100).to(dtype), normal(rows, 75).to(dtype)
        sorted_rows = rows_of([1 + row % 3 for row in range(rows)])
        yield f"low rank {rows}", ops.add_low_rank(out, x, maps, sorted_rows)


def _elementwise(ops: Backend, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    x, update = normal(5, 75).to(dtype), normal(5, 75, seed=1).to(dtype)
    yield "rms_norm", ops.rms_norm(x, normal(75).to(dtype), 1e-5)
    both = ops.add_rms_norm(x, update, normal(75), 1e-5)
    yield "add_rms_norm", torch.cat(both)
    yield "silu_and_mul", ops.silu_and_mul(3 * x, update)
    yield "gelu_tanh_and_mul", ops.gelu_tanh_and_mul(3 * x, update)
    yield "softcap", ops.softcap(9 * normal(5, 75), 4.0)
    heads = normal(5, 4, 20).to(dtype), normal(5, 2, 20).to(dtype)
    angles = normal(5, 10), normal(5, 10, seed=1)
    yield "apply_rope", torch.cat(ops.apply_rope(*heads, *angles), dim=1)


def _gated_delta(ops: Backend, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    tree = ancestry_of([[0, 0, 0, 1, 1, 3]] * 2)
    rows = {
        "decode": delta_rows([3, 1], [1, 1], 2),
        "prompt": delta_rows([2], [40], 1),
        "chains": delta_rows([0, 2], [5, 6], 0),
        "trees": delta_rows([1, 2], [6, 6], 0, tree),
    }
    shapes = DeltaShape(2, 4, 40, 70, 4), DeltaShape(1, 17, 128, 128, 3)
    for shape in (*shapes, DeltaShape.of_convolution(45, 3)):
        for name, one in rows.items():
            found = run_gated_delta(ops, DeltaForm(shape, dtype), one, 1)
            yield f"gated_delta {shape.v_dim} {name}", found


def _experts(ops: Backend, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    plain, pack_weight = draw_weights(dtype), ops.pack_weight
    assert pack_weight is not None
    assert isinstance(plain.gate_up, Tensor)
    assert isinstance(plain.down, Tensor)
    biases = plain.gate_up_bias, plain.down_bias
    weights = ExpertWeights(pack_weight(plain.gate_up), pack_weight(plain.down), *biases)
    x, routing = normal(9, WIDTH).to(dtype), draw_routing(9)
    for kind in KINDS:
        activation = GatedActivation(kind, limit=1.5)
        yield f"experts {kind}", ops.experts(x, routing, weights, activation)
    for form in (*FORMS, *FLOAT4):
        gate_up, down = (
            pack_weight(draw_quantized(form, one)) for one in (plain.gate_up, plain.down)
        )
        activation = GatedActivation("silu")
        yield f"experts {form}", ops.experts(x, routing, ExpertWeights(gate_up, down), activation)


if __name__ == "__main__":
    print(json.dumps(digests()))
