"""Ops on a CPU give a row the same bits alone and in batches of 2 to 67 rows, at every place.

Widths are not multiples of a vector; threads are 1, 2 and 3. `test_row_independence` shows for the
references that this follows from how they call BLAS.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal

import pytest
import torch
from torch import Tensor

from specdecode_kernels import (
    AttentionMetadata,
    AttentionParams,
    Backend,
    DeltaShape,
    DeltaState,
    LayerKV,
    TreeKV,
)
from specdecode_kernels.testing import backend_of
from specdecode_kernels.testing.gated_delta import DeltaForm, delta_rows
from tests.row_batches import ROWS, SIZES, SOME_SIZES, assert_rows_are_independent

CPU = torch.device("cpu")
DIM = 10  # of a head
KEYS = 150
NODES = 11  # of a tree
Op = Callable[[Tensor], Tensor]  # of the numbers of rows
Name = Literal["torch", "cpu"]

every_backend = pytest.mark.parametrize(
    ("name", "dtype"),
    [("torch", torch.float32), ("cpu", torch.float32), ("cpu", torch.bfloat16)],
    ids=str,
)


def draw(*shape: int, dtype: torch.dtype) -> Tensor:
    """Normal numbers, others for each shape."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def linear_of(ops: Backend, dtype: torch.dtype, outputs: int, inputs: int) -> Op:
    x, weight = draw(ROWS, inputs, dtype=dtype), draw(outputs, inputs, dtype=dtype)
    bias = draw(outputs, dtype=dtype)
    held = weight if ops.pack_weight is None else ops.pack_weight(weight)
    return lambda rows: ops.linear(x[rows], held, bias)


def map_heads_of(ops: Backend, dtype: torch.dtype, outputs: int, inputs: int) -> Op:
    x, weight = draw(ROWS, 3, inputs + 4, dtype=dtype), draw(3, outputs, inputs, dtype=dtype)
    held = weight if ops.pack_weight is None else ops.pack_weight(weight)
    return lambda rows: ops.map_heads(x[rows][:, :, :inputs], held).flatten(1)


def norm_of(ops: Backend, dtype: torch.dtype, width: int) -> Op:
    x, weight = draw(ROWS, width, dtype=dtype), draw(width, dtype=dtype)
    return lambda rows: ops.rms_norm(x[rows], weight, 1e-5)


def add_norm_of(ops: Backend, dtype: torch.dtype, width: int) -> Op:
    x, weight = draw(2, ROWS, width, dtype=dtype), draw(width, dtype=dtype)
    return lambda rows: torch.cat(ops.add_rms_norm(x[0, rows], x[1, rows], weight, 1e-5), dim=-1)


def gate_of(ops: Backend, dtype: torch.dtype, width: int) -> Op:
    x = draw(2, ROWS, width, dtype=dtype) * 4
    return lambda rows: ops.silu_and_mul(x[0, rows], x[1, rows])


def gelu_gate_of(ops: Backend, dtype: torch.dtype, width: int) -> Op:
    x = draw(2, ROWS, width, dtype=dtype) * 4
    return lambda rows: ops.gelu_tanh_and_mul(x[0, rows], x[1, rows])


def softcap_of(ops: Backend, _: torch.dtype, width: int) -> Op:
    logits = draw(ROWS, width, dtype=torch.float32) * 40
    return lambda rows: ops.softcap(logits[rows], 30.0)


def rope_of(ops: Backend, dtype: torch.dtype, width: int) -> Op:
    heads = draw(ROWS, 5, width, dtype=dtype)
    angles = draw(ROWS, width // 2, dtype=torch.float32)

    def turn(rows: Tensor) -> Tensor:
        q, k = heads[rows].split((3, 2), dim=1)
        return torch.cat(ops.apply_rope(q, k, angles[rows].cos(), angles[rows].sin()), dim=1)

    return turn


OPS: dict[str, Callable[[Backend, torch.dtype], Op]] = {
    "linear, small": partial(linear_of, outputs=33, inputs=50),
    "linear, on threads": partial(linear_of, outputs=333, inputs=201),
    "map_heads": partial(map_heads_of, outputs=70, inputs=19),
    "map_heads, on threads": partial(map_heads_of, outputs=130, inputs=201),
    "rms_norm": partial(norm_of, width=50),
    "add_rms_norm": partial(add_norm_of, width=90),
    "silu_and_mul": partial(gate_of, width=45),
    "gelu_tanh_and_mul": partial(gelu_gate_of, width=45),
    "softcap": partial(softcap_of, width=77),
    "apply_rope": partial(rope_of, width=DIM),
}


@every_backend
@pytest.mark.parametrize("op", OPS)
def test_a_row_does_not_depend_on_its_batch(op: str, name: Name, dtype: torch.dtype) -> None:
    assert_rows_are_independent(OPS[op](backend_of(name, CPU, dtype), dtype))


PARAMS = {
    "plain": AttentionParams(),
    "features": AttentionParams(
        scale=0.3, logit_softcap=2.0, sliding_window=37, sinks=torch.linspace(-1, 2, 6)
    ),
}


@every_backend
@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("has_tree", [False, True], ids=["cache", "cache and tree"])
@pytest.mark.parametrize("layout", ["one request each", "one request"])
def test_attention_of_a_row_does_not_depend_on_its_batch(
    layout: str, has_tree: bool, params: str, name: Name, dtype: torch.dtype
) -> None:
    """Rows see between 1 and all keys, perhaps some nodes of a tree, of their request or of one."""
    ops = backend_of(name, CPU, dtype)
    q = draw(ROWS, 6, DIM, dtype=dtype)
    kv = LayerKV(draw(KEYS, 2, DIM, dtype=dtype), draw(KEYS, 2, 7, dtype=dtype))
    kv_lens = torch.linspace(1, KEYS, ROWS).long()
    trees = draw(ROWS, NODES, 2, DIM, dtype=dtype), draw(ROWS, NODES, 2, 7, dtype=dtype)
    seen = draw(ROWS, NODES, dtype=torch.float32) > 0

    def attend(rows: Tensor) -> Tensor:
        is_each = layout == "one request each"
        lens = (1,) * len(rows) if is_each else (len(rows),)
        pages = torch.arange(KEYS).expand(len(lens), -1).contiguous()
        metadata = AttentionMetadata(pages, 1, lens, kv_lens[rows], KEYS)
        owners = rows if is_each else torch.tensor([0])
        mask = seen[rows].unsqueeze(1 if is_each else 0)
        tree = TreeKV(trees[0][owners], trees[1][owners], mask) if has_tree else None
        return ops.attend(q[rows], kv, metadata, tree, PARAMS[params])

    assert_rows_are_independent(attend, SIZES if name == "cpu" else SOME_SIZES)


@every_backend
def test_the_gated_delta_rule_of_a_request_does_not_depend_on_its_batch(
    name: Name, dtype: torch.dtype
) -> None:
    """Of requests of one row, each with a state of its own."""
    ops, form = backend_of(name, CPU, dtype), DeltaForm(DeltaShape(2, 4, 20, 37, 4), dtype)
    params = form.draw_params(0)
    u, gates = form.draw_inputs(ROWS, 1)
    of_rows = replace(form, slots=ROWS, nodes=1).draw_state(2)

    def advance(rows: Tensor) -> Tensor:
        drafted = of_rows.drafted[:, rows], of_rows.drafted_gates[:, rows]
        state = DeltaState(of_rows.inputs[:, rows], of_rows.matrices[:, rows], *drafted)
        own = delta_rows(range(len(rows)), [1] * len(rows), len(rows))
        y = ops.gated_delta(u[rows], gates[rows], params, state, 1, own)
        return torch.cat([y.flatten(1).float(), state.matrices[1].flatten(1)], dim=1)

    assert_rows_are_independent(advance, SIZES if name == "cpu" else SOME_SIZES)


def test_an_op_whose_rows_depend_on_their_place_is_noticed() -> None:
    """The comparison itself."""
    x = draw(ROWS, 3, dtype=torch.float32)
    with pytest.raises(AssertionError, match=r"4 rows on 1 threads: rows \[3\] differ"):
        assert_rows_are_independent(lambda rows: x[rows] + (torch.arange(len(rows)) == 3)[:, None])
