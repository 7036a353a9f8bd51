"""Attention between its linear maps, in as few calls as can be."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specdecode_engine.model.layers.layers import Linear
from specdecode_engine.model.target.transformers_config import UnsupportedModel
from specdecode_engine.model.transformers.attention import CACHES, WITHOUT_EFFECT, PagedAttention
from specdecode_engine.model.transformers.attention_form import (
    AttentionForm,
    NormPlace,
    Rotation,
    Temperature,
)
from specdecode_engine.model.transformers.modules import RotaryRows, RowModule
from specdecode_engine.model.transformers.row_norms import JoinedNorms
from specdecode_kernels import Backend
from specdecode_kernels.torch.by_row import by_row


class AttentionMaps(NamedTuple):
    """Queries, keys and values one under the other, the output, and the gate of what is read."""

    qkv: Linear
    widths: list[int]  # of the three
    output: Linear
    gate: Linear | None = None


class QueryFactors(NamedTuple):
    """The factors of queries by whole intervals of positions; see `Temperature`."""

    temperature: Temperature
    factors: Tensor  # [intervals] f32

    @classmethod
    def of(cls, temperature: Temperature, positions: int, device: torch.device) -> "QueryFactors":
        """Tabulate the factors of so many positions."""
        firsts = range(-temperature.offset, positions, temperature.interval)  # of each interval
        factors = torch.tensor([temperature.factor(position) for position in firsts])
        return cls(temperature, factors.to(device))

    def multiply(self, q: Tensor, positions: Tensor) -> Tensor:
        """Multiply queries [rows, heads, head_dim] at positions [rows] i64."""
        interval, _, offset = self.temperature
        factors = self.factors.index_select(0, (positions + offset) // interval)
        return (q * factors[:, None, None]).to(q.dtype)


class RowAttention(RowModule):
    """Computes what `recognise_attention` found; replaces a whole attention module.

    transformers' modules call some forty small ops more: for one row and weights that do not fit
    into a cache, these cost as much as a tenth of the linear maps.
    """

    def __init__(
        self,
        ops: Backend,
        maps: AttentionMaps,
        norms: tuple[RowModule, ...] | JoinedNorms,
        form: AttentionForm,
        paged: PagedAttention,
        query_factors: QueryFactors | None = None,
    ) -> None:
        super().__init__()
        self.ops = ops
        self.qkv, self.widths, self.output, self.gate = maps
        self.head_counts = [width // form.head_dim for width in maps.widths]
        self.heads = sum(self.head_counts)
        self.head_dim = form.head_dim
        self.is_rotated = form.rotation is not Rotation.NONE  # pairs of the maps lie in halves
        self.params = form.params
        self.norms = norms  # of queries and of keys
        self.place = form.norm_place
        self.paged = paged
        self.query_factors = query_factors
        self.is_checked = False

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: RotaryRows | None = None,
        attention_mask: object = None,
        **arguments: Any,
    ) -> tuple[Tensor, None]:
        """Map hidden states [1, rows, inputs] to [1, rows, outputs]."""
        if not self.is_checked:
            check_arguments(self.paged.path, attention_mask, arguments)
            self.is_checked = True
        rows = hidden_states.squeeze(0)
        q, k, v = self._projections(rows)
        if self.place is NormPlace.HEADS:
            q, k = self._normed(q, k)
        if self.is_rotated:
            assert position_embeddings is not None
            q, k = self.ops.apply_rope(q, k, *position_embeddings.halves_of(self.head_dim))
        if self.place is NormPlace.ROTATED_HEADS:
            q, k = self._normed(q, k)
        if self.query_factors is not None:
            assert position_embeddings is not None
            q = self.query_factors.multiply(q, position_embeddings.rows)
        view = self.paged.state.view
        assert view is not None
        attended = view.attend(self.paged.layer, q, k, v, self.params).flatten(1)
        if self.gate is not None:
            attended = attended * by_row(torch.sigmoid, self.gate(rows))
        return self.output(attended).unsqueeze(0), None

    def _projections(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of rows [rows, inputs], each [rows, heads, head_dim]."""
        mapped = self.qkv(x)
        if self.place is not NormPlace.ROWS:
            heads = mapped.view(x.shape[0], self.heads, self.head_dim)
            q, k, v = heads.split_with_sizes(self.head_counts, dim=1)
            return q, k, v
        q, k, v = mapped.split_with_sizes(self.widths, dim=1)
        if isinstance(self.norms, JoinedNorms):
            q, k = self.norms(mapped[:, : -self.widths[2]])
        else:
            q, k = self._normed(q, k)
        parts = zip((q, k, v), self.head_counts, strict=True)
        q, k, v = (part.view(-1, count, self.head_dim) for part, count in parts)
        return q, k, v

    def _normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        assert isinstance(self.norms, tuple)
        q_norm, k_norm = self.norms
        return q_norm(q), k_norm(k)


def check_arguments(path: str, mask: object, arguments: Mapping[str, Any]) -> None:
    """Raise if a layer gives what its attention module was not recognised with."""
    given = {name for name, value in arguments.items() if value is not None}
    unknown = sorted(given - WITHOUT_EFFECT - CACHES) + ["attention_mask"] * (mask is not None)
    if unknown:
        raise UnsupportedModel(
            f"{path} is given the arguments {', '.join(unknown)} by its layer; this model type is "
            "not supported"
        )
