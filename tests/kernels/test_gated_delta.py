"""The reference of the gated delta rule: transformers' numbers, in any cut, draft and tree."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers.models.qwen3_next.modeling_qwen3_next import (
    causal_conv1d_fn,
    torch_recurrent_gated_delta_rule,
)

from specdecode_kernels import TORCH, DeltaParams, DeltaShape
from specdecode_kernels.testing import checked
from specdecode_kernels.testing.gated_delta import DeltaForm, delta_rows
from tests.kernels.delta_texts import (
    LAYER,
    OTHERS,
    SHAPES,
    Text,
    assert_cuts_do_not_matter,
    assert_drafts_are_kept_like_plain_tokens,
    assert_paths_of_a_tree_are_chains,
    form_of,
)

CPU = torch.device("cpu")
OPS = checked(TORCH)
SMALL = ("shared k heads", "parts of vectors", "no convolution")
TYPES = (torch.float32, torch.bfloat16, torch.float64)

each_shape = pytest.mark.parametrize("shape", [*SMALL, *OTHERS])
each_type = pytest.mark.parametrize("dtype", TYPES, ids=str)


def transformers_of(
    u: Tensor, gates: Tensor, params: DeltaParams, matrix: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute a text from its start by transformers; returns y and S."""
    shape = params.shape
    convolved = causal_conv1d_fn(u.t()[None], params.conv[LAYER].t(), activation="silu")
    width = shape.k_heads * shape.k_dim
    q, k, v = convolved[0].t().split([width, width, shape.v_heads * shape.v_dim], dim=1)
    beta, gate = gates.chunk(2, dim=1)
    decay = -params.decay[LAYER] * functional.softplus(gate + params.dt_bias[LAYER])
    y, after = torch_recurrent_gated_delta_rule(
        *(one.view(1, len(u), shape.k_heads, shape.k_dim) for one in (q, k)),
        v.view(1, len(u), shape.v_heads, shape.v_dim),
        decay[None],
        beta.sigmoid()[None],
        matrix[None],
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    assert after is not None
    return y[0], after[0]


@pytest.mark.parametrize("shape", SHAPES)
def test_it_equals_transformers(shape: str) -> None:
    """Of a text that no inputs precede, from any matrix, in float32."""
    form = DeltaForm(SHAPES[shape])
    text, state = Text.draw(OPS, form, 1, CPU), form.draw_state(2)
    state.inputs.zero_()
    before = state.matrices[LAYER, 1].clone()
    found = text.read(state, 1, 0, len(text.u))
    y, matrix = transformers_of(text.u, text.gates, text.params, before)
    torch.testing.assert_close(found, y, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(state.matrices[LAYER, 1], matrix, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", ["short convolution", "long convolution"])
def test_a_convolution_equals_that_of_transformers(shape: str) -> None:
    form = form_of(shape)
    text, state = Text.draw(OPS, form, 1, CPU), form.draw_state(2)
    state.inputs.zero_()
    found, params = text.read(state, 1, 0, len(text.u)), text.params
    bias = None if params.conv_bias is None else params.conv_bias[LAYER]
    wanted = causal_conv1d_fn(text.u.t()[None], params.conv[LAYER].t(), bias)
    torch.testing.assert_close(found[:, 0], wanted[0].t(), atol=1e-5, rtol=1e-5)


@each_type
@each_shape
def test_a_text_does_not_depend_on_its_cuts(shape: str, dtype: torch.dtype) -> None:
    text = Text.draw(OPS, form_of(shape, dtype), 1, CPU, 20)
    assert_cuts_do_not_matter(text, 2, cuts=3)


@each_type
@each_shape
def test_accepted_chains_are_kept_like_plain_tokens(shape: str, dtype: torch.dtype) -> None:
    text = Text.draw(OPS, form_of(shape, dtype), 3, CPU, 20)
    assert_drafts_are_kept_like_plain_tokens(text, 4)


@each_type
@each_shape
def test_every_path_of_a_tree_is_a_chain(shape: str, dtype: torch.dtype) -> None:
    text = Text.draw(OPS, form_of(shape, dtype), 5, CPU, 20)
    assert_paths_of_a_tree_are_chains(text, 6)


def test_a_request_without_rows_is_left_alone() -> None:
    form = DeltaForm(DeltaShape(1, 1, 4, 4, 2))
    text, state = Text.draw(OPS, form, 1, CPU, 3), form.draw_state(1)
    before = state.matrices[:, 2].clone()
    y = text.forward(state, torch.arange(3), delta_rows([2, 1], [0, 3], 2))
    assert len(y) == 3
    assert torch.equal(state.matrices[:, 2], before)
