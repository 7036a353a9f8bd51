"""Multi-head latent attention of transformers' modules, computed as `LatentAttention`."""

from typing import Any

from torch import Tensor

from specdecode_engine.model.layers.latent_attention import LatentAttention
from specdecode_engine.model.transformers.attention import PagedAttention
from specdecode_engine.model.transformers.modules import RotaryRows, RowModule
from specdecode_engine.model.transformers.row_attention import check_arguments


class RowLatentAttention(RowModule):
    """Computes what `recognise_latent_attention` found; replaces a whole attention module."""

    def __init__(self, attention: LatentAttention, paged: PagedAttention) -> None:
        super().__init__()
        self.attention = attention
        self.paged = paged
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
        assert position_embeddings is not None
        assert position_embeddings.halves is not None
        view = self.paged.state.view
        assert view is not None
        rows, halves = hidden_states.squeeze(0), position_embeddings.halves
        return self.attention(rows, halves, self.paged.layer, view).unsqueeze(0), None
