"""Accepted rows of drafts change the states of all layers as kept rows do, and as the reference."""

import pytest
import torch

from specdecode_kernels import TORCH, DeltaShape
from specdecode_kernels.testing.gated_delta import DeltaForm, copied
from tests.kernels.delta_texts import Text, assert_drafts_are_kept_like_plain_tokens
from tests.kernels.triton_ops import TRITON

SHAPES = {
    "shared k heads": DeltaShape(2, 4, 32, 64, 4),
    "parts of blocks": DeltaShape(1, 3, 20, 37, 3),
    "several blocks": DeltaShape(1, 2, 64, 80, 2),
    "no convolution": DeltaShape(2, 2, 7, 5, 1),
    "short convolution": DeltaShape.of_convolution(37, 3),
    "long convolution": DeltaShape.of_convolution(300, 5),
}
BIASED = ("parts of blocks", "long convolution")

each_shape = pytest.mark.parametrize("shape", SHAPES)


@each_shape
def test_accepted_chains_are_kept_like_plain_tokens(shape: str, device: torch.device) -> None:
    form = DeltaForm(SHAPES[shape], torch.bfloat16, nodes=4, has_bias=shape in BIASED)
    assert_drafts_are_kept_like_plain_tokens(Text.draw(TRITON, form, 1, device, 7), 4)


@pytest.mark.parametrize("is_tree", [False, True], ids=["chains", "trees"])
@each_shape
def test_it_equals_the_reference(shape: str, is_tree: bool, device: torch.device) -> None:
    """In all layers; of padded requests, which share slot 0, nothing is known."""
    form = DeltaForm(SHAPES[shape], torch.bfloat16, layers=3, nodes=6)
    params, state = form.draw_params(1, device), form.draw_state(2, device)
    drawn = form.draw_inputs(3 * form.slots * 5, 3, device)
    state.drafted.copy_(drawn[0].view(state.drafted.shape))
    state.drafted_gates.copy_(drawn[1].view(state.drafted_gates.shape))
    state.matrices[:, 0], state.drafted[:, 0] = torch.nan, torch.nan
    theirs = copied(state)
    slots = torch.tensor([3, 0, 1, 0, 2], device=device)
    path = torch.tensor([[0, 2, 3, 5], [0, 1, 2, 3], [0, 4, 4, 4], [0] * 4, [0] * 4], device=device)
    accepted = torch.tensor([3, 2, 1, 0, 0], device=device)
    given = slots, path if is_tree else None, accepted
    TRITON.keep_drafted(params, state, *given)
    TORCH.keep_drafted(params, theirs, *given)
    assert torch.equal(state.inputs[:, 1:], theirs.inputs[:, 1:])
    assert state.matrices[:, 1:].isfinite().all()
    torch.testing.assert_close(state.matrices[:, 1:], theirs.matrices[:, 1:], atol=3e-5, rtol=3e-5)


def test_no_requests(device: torch.device) -> None:
    form = DeltaForm(SHAPES["no convolution"])
    state, none = form.draw_state(0, device), torch.zeros(0, dtype=torch.int64, device=device)
    before = state.matrices.clone()
    TRITON.keep_drafted(form.draw_params(0, device), state, none, None, none)
    assert torch.equal(state.matrices, before)
