"""The order of heads: partial rotation and gates give what the published order gives."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specdecode_engine.model.target.config import DecoderConfig
from specdecode_engine.model.target.head_order import (
    order_heads,
    order_qkv,
    pad_angles,
    rotary_order,
)

DECODER = DecoderConfig(
    hidden_size=12,
    intermediate_size=20,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=6,
    rms_norm_eps=1e-5,
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
)


def rotated(heads: Tensor, cos_sin: Tensor, dim: int) -> Tensor:
    """Turn the first `dim` entries of heads [rows, heads, head_dim], in pairs of their halves."""
    first, second = heads[..., :dim].chunk(2, dim=-1)
    cos, sin = cos_sin[:, :, None]
    turned = first * cos - second * sin, second * cos + first * sin
    return torch.cat((*turned, heads[..., dim:]), dim=-1)


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(6, 2), (8, 4), (16, 4), (20, 10), (8, 8)])
def test_partial_rotation_is_that_of_the_published_order(head_dim: int, rotary_dim: int) -> None:
    torch.manual_seed(0)
    heads = torch.randn(5, 3, head_dim, dtype=torch.float64)
    angles = torch.randn(5, rotary_dim // 2, dtype=torch.float64)
    cos_sin = torch.stack((angles.cos(), angles.sin()))
    published = rotated(heads, cos_sin, rotary_dim)
    order = rotary_order(head_dim, rotary_dim)
    ours = rotated(heads[..., order], pad_angles(cos_sin, head_dim), head_dim)
    assert sorted(order.tolist()) == list(range(head_dim))
    assert torch.equal(ours, published[..., order])


def test_rows_of_a_map_are_ordered_head_by_head() -> None:
    weight = torch.arange(2 * 6 * 3).view(12, 3)
    ordered = order_heads(weight, 6, 2).view(2, 6, 3)
    assert torch.equal(ordered, weight.view(2, 6, 3)[:, rotary_order(6, 2)])
    assert order_heads(weight, 6, None) is weight


def test_the_gate_of_each_head_is_behind_values() -> None:
    """The published map has, for each head, rows of the query and then of its gate."""
    torch.manual_seed(0)
    decoder = replace(DECODER, has_output_gate=True)
    q, gate = torch.randn(2, 4, 6, 12).unbind()
    k, v = torch.randn(2, 12, 12).unbind()
    published = torch.cat((torch.cat((q, gate), dim=1).flatten(0, 1), k, v))
    expected = torch.cat((q.flatten(0, 1), k, v, gate.flatten(0, 1)))
    assert torch.equal(order_qkv(published, decoder), expected)
    bias = order_qkv(published[:, 0], decoder)
    assert torch.equal(bias, expected[:, 0])


def test_values_and_gates_keep_their_order_under_partial_rotation() -> None:
    torch.manual_seed(0)
    decoder = replace(DECODER, rotary_dim=2)
    rows = torch.randn(24 + 12 + 12, 5)
    ordered = order_qkv(rows, decoder)
    assert torch.equal(ordered[36:], rows[36:])
    assert torch.equal(ordered[:24], order_heads(rows[:24], 6, 2))
    assert torch.equal(ordered[24:36], order_heads(rows[24:36], 6, 2))
