"""Norms over all heads of queries and of keys (OLMo 2), of which each rank has a share.

The rows of all ranks are joined, and every rank norms them whole and takes its part. So the norm's
own op adds the squares of a row, in an order that neither the batch nor another rank changes; what
is sent is a row of queries and keys, less than what attention returns to all ranks.
"""

import copy
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any, NamedTuple

from torch import Tensor, nn

from specdecode_engine.model.target.sharding import shares
from specdecode_engine.model.transformers.attention_form import (
    INPUTS,
    AttentionForm,
    NormPlace,
    recognise_attention,
)
from specdecode_engine.model.transformers.modules import RowModule
from specdecode_engine.model.transformers.recognition import with_children
from specdecode_engine.ranks import Ranks


class RowNormedAttention(NamedTuple):
    """Attention with norms over all heads: what it computes, and the widths of these norms."""

    form: AttentionForm
    widths: tuple[int, int]  # of queries and of keys of all ranks

    @classmethod
    def of(
        cls, whole: nn.Module, part: nn.Module, angles: int | None
    ) -> "RowNormedAttention | None":
        """Recognise a module of which a rank has a part; None if the two do not compute alike.

        Args:
            angles: see `recognise_attention`.
        """
        form = recognise_attention(whole, angles)
        if form is None or form.norm_place is not NormPlace.ROWS or form.params.sinks is not None:
            return None
        norms = {
            name: _narrowed(part.get_submodule(name), width)
            for name, width in zip(form.norms, _widths(part, form), strict=True)
        }
        own = recognise_attention(with_children(part, norms), angles)
        return cls(form, _widths(whole, form)) if own is not None and _is_same(own, form) else None

    def whole_norms(self, norms: Sequence[nn.Module], ranks: Ranks) -> list[nn.Module]:
        """Return norms of which a rank has parts of the weights with whole ones."""
        pairs = zip(norms, self.widths, strict=True)
        return [_joined(norm, width, ranks) for norm, width in pairs]


def _is_same(one: AttentionForm, other: AttentionForm) -> bool:
    params = astuple(one.params), astuple(other.params)
    return one._replace(params=other.params) == other and params[0] == params[1]


def _widths(attention: Any, form: AttentionForm) -> tuple[int, int]:
    """Return how many numbers of queries and of keys a module norms."""
    output, keys = (attention.get_submodule(name) for name in (form.output, INPUTS[1]))
    return output.in_features, keys.out_features


def _narrowed(norm: nn.Module, width: int) -> nn.Module:
    """Return a norm of a rank's numbers alone: some types make that of the whole (OLMoE)."""
    weight = norm._parameters.get("weight")
    return norm if weight is None else with_weight(norm, weight[:width])


def with_weight(norm: nn.Module, weight: Tensor) -> nn.Module:
    """Copy a norm, with another weight."""
    other = copy.copy(norm)
    parameter = nn.Parameter(weight.detach(), requires_grad=False)
    other._parameters = {**norm._parameters, "weight": parameter}
    return other


def _joined(norm: nn.Module, width: int, ranks: Ranks) -> nn.Module:
    """Return a norm with the weight of all ranks."""
    weight = norm._parameters.get("weight")
    if weight is None or len(weight) == width:
        return norm
    parts = ranks.join(weight.detach()[None]).view(1, ranks.size, -1)
    return with_weight(norm, _without_repeated(parts, width)[0])


def _without_repeated(parts: Tensor, width: int) -> Tensor:
    """Put the parts [rows, ranks, entries] of rows of a width one after the other.

    Neighbours have the same part where there are more ranks than heads.
    """
    rows, ranks, own = parts.shape
    return parts[:, :: ranks * own // width].reshape(rows, width)


class JoinedNorms:
    """Norms of queries and of keys, over the heads of all ranks."""

    def __init__(
        self, norms: tuple[RowModule, ...], widths: tuple[int, int], own: list[int], ranks: Ranks
    ) -> None:
        """Norm rows of `widths`.

        Args:
            own: widths of what this rank has of queries, keys and values.
        """
        self.norms = norms
        self.widths = widths
        self.own = own[:2]
        self.ranks = ranks
        pieces = zip(widths, self.own, strict=True)
        self.shares = [shares((one,), ranks.rank, ranks.size)[0] for one in pieces]

    def __call__(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Norm queries and keys, one after the other in rows [rows, entries]."""
        parts = self.ranks.join(rows).view(len(rows), self.ranks.size, -1)
        q, k = (
            norm(_without_repeated(part, width))[:, share]
            for norm, part, width, share in zip(
                self.norms,
                parts.split_with_sizes(self.own, dim=2),
                self.widths,
                self.shares,
                strict=True,
            )
        )
        return q, k
