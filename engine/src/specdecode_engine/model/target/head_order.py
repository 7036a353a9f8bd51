"""The order of attention's heads and of their entries, where a checkpoint has another than ours.

Attention turns pairs (i, i + head_dim / 2) of a head. Where a model turns only the first
`rotary_dim` entries, in pairs (i, i + rotary_dim / 2), the entries of query and key heads are
stored in an order in which these pairs are where attention turns them, and the other pairs turn by
nothing. Queries and keys in one order have the same products.
"""

import torch
from torch import Tensor
from torch.nn import functional

from specdecode_engine.model.target.config import DecoderConfig


def rotary_order(head_dim: int, rotary_dim: int) -> Tensor:
    """Return [head_dim] i64: which entry of the checkpoint's heads is at each place of ours."""
    turned, half = rotary_dim // 2, head_dim // 2
    first, second = torch.arange(turned), torch.arange(turned, rotary_dim)
    others = torch.arange(rotary_dim, head_dim)
    return torch.cat((first, others[: half - turned], second, others[half - turned :]))


def halves_of_pairs(head_dim: int) -> Tensor:
    """Return the order of a head's numbers in which the first of every pair come first.

    Queries and keys in this order have the same products, and what turned pairs turns halves.
    """
    return torch.arange(head_dim).view(-1, 2).T.flatten()


def halves_of_part(head_dim: int, rotated: int) -> Tensor:
    """Return the order of a head's numbers in which those that turn begin its halves.

    What turned the halves of the first `rotated` numbers turns the halves of the head, by angles of
    0 after those of the part.
    """
    others = torch.arange(rotated, head_dim).chunk(2)
    first, second = torch.arange(rotated).chunk(2)
    return torch.cat((first, others[0], second, others[1]))


def order_after(kept: int, order: Tensor) -> Tensor:
    """Return the order that changes nothing before the first `kept` numbers."""
    return torch.cat((torch.arange(kept), kept + order))


def order_heads(rows: Tensor, head_dim: int, rotary_dim: int | None) -> Tensor:
    """Put the entries of every head of [heads * head_dim, ...] into the order of `rotary_order`."""
    if rotary_dim is None:
        return rows
    heads = rows.view(-1, head_dim, *rows.shape[1:])
    order = rotary_order(head_dim, rotary_dim).to(rows.device)
    return heads[:, order].flatten(0, 1)


def order_qkv(rows: Tensor, config: DecoderConfig) -> Tensor:
    """Put q, k and v, one below the other, into the order q, k, v and the gate of the output.

    Args:
        rows: [rows of q, k and v, ...]; where attention has a gate of as many entries as queries,
            the rows of q are, for each head, those of the query and then those of the gate. Gates
            of heads follow after v.
    """
    head_dim, heads = config.head_dim, config.num_attention_heads
    k_rows = config.num_key_value_heads * head_dim
    v_rows = config.num_key_value_heads * config.v_head_dim
    q_rows = heads * head_dim * (1 + config.has_output_gate)
    q, k, v, *gates = rows.split_with_sizes([q_rows, k_rows, v_rows, *head_gates(config)])
    if config.has_output_gate:
        q, gate = q.view(heads, 2, head_dim, *q.shape[1:]).unbind(1)
        q, gates = q.flatten(0, 1), [gate.flatten(0, 1)]
    q, k = (order_heads(part, head_dim, config.rotary_dim) for part in (q, k))
    return torch.cat((q, k, v, *gates))


def head_gates(config: DecoderConfig) -> list[int]:
    """Return the rows of the map of gates of heads, if attention has some."""
    return [config.num_attention_heads] if config.has_head_gate else []


def pad_angles(angles: Tensor, head_dim: int) -> Tensor:
    """Extend cosines and sines [2, rows, rotary_dim / 2] by pairs that turn by nothing.

    Returns:
        [2, rows, head_dim / 2].
    """
    missing = head_dim // 2 - angles.shape[2]
    cos, sin = (
        functional.pad(part, (0, missing), value=one)
        for part, one in zip(angles, (1.0, 0.0), strict=True)
    )
    return torch.stack((cos, sin))
