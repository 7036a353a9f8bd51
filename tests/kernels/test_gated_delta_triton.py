"""Rows of any cut, draft and tree, against the reference and against one another."""

import random

import pytest
import torch
from torch import Tensor

from specdecode_kernels import TORCH, DeltaShape
from specdecode_kernels.testing.gated_delta import DeltaForm, ancestry_of, copied, delta_rows
from tests.kernels.delta_texts import (
    LAYER,
    Text,
    assert_cuts_do_not_matter,
    assert_paths_of_a_tree_are_chains,
    draw_tree,
)
from tests.kernels.triton_ops import TRITON

SHAPES = {
    "shared k heads": DeltaShape(2, 4, 32, 64, 4),
    "parts of blocks": DeltaShape(1, 3, 20, 37, 3),
    "several blocks": DeltaShape(1, 2, 64, 80, 4),
    "no convolution": DeltaShape(2, 2, 7, 5, 1),
    "short convolution": DeltaShape.of_convolution(37, 3),
    "long convolution": DeltaShape.of_convolution(300, 5),
}
TOLERANCES = {torch.float32: 3e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
BIASED = ("parts of blocks", "long convolution")

each_shape = pytest.mark.parametrize("shape", SHAPES)


def text_of(shape: str, dtype: torch.dtype, device: torch.device, tokens: int) -> Text:
    return Text.draw(
        TRITON,
        DeltaForm(SHAPES[shape], dtype, nodes=5, has_bias=shape in BIASED),
        1,
        device,
        tokens,
    )


@each_shape
def test_a_text_does_not_depend_on_its_cuts(shape: str, device: torch.device) -> None:
    assert_cuts_do_not_matter(text_of(shape, torch.float32, device, 8), 2, cuts=1)


@each_shape
def test_every_path_of_a_tree_is_a_chain(shape: str, device: torch.device) -> None:
    assert_paths_of_a_tree_are_chains(text_of(shape, torch.float32, device, 12), 5)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("is_tree", [False, True], ids=["chains", "trees"])
@each_shape
def test_it_equals_the_reference(
    shape: str, is_tree: bool, dtype: torch.dtype, device: torch.device
) -> None:
    """Of chunks next to drafts, with nothing known of the other slots."""
    text = text_of(shape, dtype, device, 12)
    form, rng = text.form, random.Random(7)
    state = form.draw_state(3, device)
    state.matrices[:, 0], state.inputs[:, 0] = torch.nan, torch.nan
    theirs = copied(state)
    sizes = [form.nodes] * 3 if is_tree else [5, 0, form.nodes]
    ancestry = ancestry_of([draw_tree(rng, form.nodes) for _ in sizes], device)
    marks = ancestry if is_tree else None
    rows = delta_rows([2, 1, 3], sizes, 0 if is_tree else 2, marks, device)
    tokens = torch.randint(len(text.u), (sum(sizes),))
    found = text.forward(state, tokens, rows)
    wanted = text._replace(ops=TORCH).forward(theirs, tokens, rows)
    assert_close(found, wanted, TOLERANCES[dtype])
    assert_close(state.matrices[LAYER, 1:], theirs.matrices[LAYER, 1:], 3e-5)
    for name in ("inputs", "drafted", "drafted_gates"):
        own, other = getattr(state, name), getattr(theirs, name)
        assert torch.equal(own.nan_to_num(7), other.nan_to_num(7))


def assert_close(found: Tensor, wanted: Tensor, tolerance: float) -> None:
    assert found.isfinite().all()
    torch.testing.assert_close(found, wanted, atol=tolerance, rtol=tolerance)


def test_no_rows(device: torch.device) -> None:
    text = text_of("shared k heads", torch.float32, device, 4)
    state = text.form.draw_state(0, device)
    y = text.forward(state, torch.arange(0), delta_rows([], [], 0, device=device))
    assert y.shape == (0, 4, 64)
