"""The experts that every cached token was routed to: one row of ids for each row of the KV cache.

A forward of the target writes the ids of its rows next to their keys and values. They live as long
as these: ids of a prefix that is found in the cache are there with it, and after a tree was
verified the accepted path's are moved as its keys and values are. Padding rows write to page 0.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from specdecode_engine.model.target.config import LlamaConfig
from specdecode_engine.model.target.language_model import LanguageModel
from specdecode_engine.model.transformers.row_audit import ProbeView
from specdecode_kernels import TORCH


@dataclass(frozen=True, slots=True)
class RoutedShape:
    """What is stored of one token: the ids of `top_k` experts in each of `layers` mixtures."""

    layers: int
    top_k: int
    num_experts: int

    @classmethod
    def of(cls, model: LanguageModel) -> "RoutedShape | None":
        """Read the shape off a forward of one row; None for a model without experts.

        A model whose mixtures differ in how many experts a token has is taken for one without.
        """
        mixtures = model.mixtures
        widths: list[int] = []
        for experts in mixtures:
            experts.record = lambda ids: widths.append(ids.shape[1])
        row = torch.zeros(1, dtype=torch.int64, device=model.device)
        try:
            if mixtures:
                model.forward(
                    row, row, ProbeView(model.config.layer_map, model.config.delta_layers)
                )
        finally:
            for experts in mixtures:
                experts.record = None
        if not mixtures or len(widths) != len(mixtures) or len(set(widths)) > 1:
            return None
        most = max(experts.weights.num_experts for experts in mixtures)
        return cls(len(mixtures), widths[0], most)

    @classmethod
    def read(cls, config: LlamaConfig) -> "RoutedShape | None":
        """Read the shape from the config of a native model."""
        mlp = config.sparse_mlp
        if mlp is None or not mlp.sparse_layers:
            return None
        return cls(len(mlp.sparse_layers), mlp.routing.top_k, mlp.num_experts)

    @property
    def dtype(self) -> torch.dtype:
        """The smallest type that holds the ids."""
        if self.num_experts <= 1 << 8:
            return torch.uint8
        return torch.int16 if self.num_experts <= 1 << 15 else torch.int32

    @property
    def token_bytes(self) -> int:
        """Bytes of the ids of one token."""
        return self.layers * self.top_k * self.dtype.itemsize

    def facts(self) -> dict[str, object]:
        """Return what is kept of each token: a field of /server_info."""
        dtype = str(self.dtype).removeprefix("torch.")
        return {
            "layers": self.layers,
            "top_k": self.top_k,
            "dtype": dtype,
            "token_bytes": self.token_bytes,
        }


class RoutedExperts:
    """Ids of experts of all cached tokens, written by the mixtures of one model.

    Args:
        model: its mixtures write here from now on.
        rows: of the KV cache, page 0 included.
    """

    def __init__(self, model: LanguageModel, shape: RoutedShape, rows: int, page_size: int) -> None:
        self.shape = shape
        self.ids = torch.zeros(
            (rows, shape.layers, shape.top_k), dtype=shape.dtype, device=model.device
        )
        self._page_size = page_size
        self._slots: Tensor | None = None  # of the forward that is being launched
        for layer, experts in enumerate(model.mixtures):
            experts.record = partial(self._store, self.ids[:, layer])

    @contextmanager
    def written_to(self, slot_mapping: Tensor) -> Iterator[None]:
        """Write the ids of a forward to the rows slot_mapping [rows] i64."""
        self._slots = slot_mapping
        try:
            yield
        finally:
            self._slots = None

    def _store(self, rows: Tensor, ids: Tensor) -> None:
        if self._slots is not None:
            rows.index_copy_(0, self._slots, ids.to(rows.dtype))

    def compact(
        self, page_table: Tensor, req_indices: Tensor, lengths: Tensor, path: Tensor
    ) -> None:
        """Move the rows of accepted paths; the arguments are those of `KVCache.compact`."""
        rows = self.ids[None]
        nothing = rows[..., :0]  # the op moves keys and values; there is one tensor here
        TORCH.compact_kv(rows, nothing, page_table, req_indices, lengths, path, self._page_size)

    def read(self, slots: Tensor) -> Tensor:
        """Copy the ids of rows slots [...] i64: [..., layers, top_k]."""
        return self.ids[slots]


def forward_target(
    target: LanguageModel, routed: RoutedExperts | None, slot_mapping: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor | None]:
    """Run the target over rows that are cached at slot_mapping [rows] i64, and keep their ids.

    Args:
        arguments: of `LanguageModel.forward`.
    """
    if routed is None:
        return target.forward(*arguments)
    with routed.written_to(slot_mapping):
        return target.forward(*arguments)
